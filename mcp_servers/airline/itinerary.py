"""Flights of a reservation: found and priced, checked for a trip that can be flown, and their seats taken and released.

Knows nothing about payments. Used by bookings.py and changes.py, which say when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date as day_of
from datetime import timedelta
from itertools import pairwise

from mcp_servers.airline.reads import NEXT_DAY
from mcp_servers.airline.records import FlightInfo
from mcp_servers.airline.state import FLIGHTS, Airline, AirlineError
from mcp_servers.state import Entity


def new_segment(airline: Airline, wanted: FlightInfo, cabin: str, passengers: int) -> Entity:
    """A flight as a reservation holds it, at today's price. AirlineError where it can't be booked."""
    flight = airline.flight(wanted.flight_number)
    day = airline.day(wanted.flight_number, wanted.date)
    if day["status"] != "available":
        raise AirlineError(f"Flight {wanted.flight_number} not available on date {wanted.date}")
    if cabin not in day["available_seats"]:
        # The words that the published tools let through, and the only ones for a cabin that doesn't exist.
        raise AirlineError(repr(cabin))
    if day["available_seats"][cabin] < passengers:
        raise AirlineError(f"Not enough seats on flight {wanted.flight_number}")
    return {
        "flight_number": wanted.flight_number,
        "origin": flight["origin"],
        "destination": flight["destination"],
        "date": wanted.date,
        "price": day["prices"][cabin],
    }


def check_trip(airline: Airline, terms: Entity, segments: Sequence[Entity]) -> None:
    """Whether the flights lead from origin to destination (and back), one after the other; AirlineError where not.

    `terms` has `origin`, `destination` and `flight_type`. The published tools don't look at it.
    """
    if airline.tau2:
        return
    stops = [segment["origin"] for segment in segments] + [segment["destination"] for segment in segments[-1:]]
    legs = pairwise(segments)
    there_and_back = terms["flight_type"] == "round_trip"
    last_stop = terms["origin"] if there_and_back else terms["destination"]
    if (
        not segments
        or (stops[0], stops[-1]) != (terms["origin"], last_stop)
        or terms["destination"] not in stops
        or any(first["destination"] != second["origin"] for first, second in legs)
    ):
        ways = "and back" if there_and_back else "one way"
        way = " to ".join(stops) or "nowhere"
        raise AirlineError(f"The flights lead {way}, not {terms['origin']} to {terms['destination']} {ways}")
    for first, second in pairwise(segments):
        if _departure(airline, second) < _arrival(airline, first):
            raise AirlineError(f"Flight {second['flight_number']} leaves before {first['flight_number']} has landed")


def take_seats(airline: Airline, segments: Iterable[Entity], cabin: str, passengers: int) -> None:
    """Takes seats on the segments that can still be booked, or gives them back where `passengers` is negative."""
    for segment in segments:
        flight_number, date = segment["flight_number"], segment["date"]
        if airline.day(flight_number, date)["status"] == "available":
            day = airline.state.edit(FLIGHTS, flight_number)["dates"][date]
            day["available_seats"][cabin] -= passengers


def _departure(airline: Airline, segment: Entity) -> str:
    return f"{segment['date']}T{airline.flight(segment['flight_number'])['scheduled_departure_time_est']}"


def _arrival(airline: Airline, segment: Entity) -> str:
    time = airline.flight(segment["flight_number"])["scheduled_arrival_time_est"]
    later = timedelta(days=1 if NEXT_DAY in time else 0)
    return f"{day_of.fromisoformat(segment['date']) + later}T{time.removesuffix(NEXT_DAY)}"
