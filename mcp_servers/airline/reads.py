"""The eight airline tools that change nothing. Each takes the session first, then the agent's arguments.

Knows nothing about MCP; results are plain JSON values or text. Listed for callers in tools.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date as day_of
from datetime import timedelta

from mcp_servers.airline.records import (
    Date,
    Destination,
    Expression,
    FlightNumber,
    Origin,
    ReservationId,
    Summary,
    UserId,
)
from mcp_servers.airline.state import Airline, flights_from
from mcp_servers.arithmetic import work_out
from mcp_servers.state import Entity

NEXT_DAY = "+1"
"""Ends the arrival time of a flight that lands on the day after."""


def get_user_details(airline: Airline, user_id: UserId) -> Entity:
    """The user's name, membership, payment methods, saved passengers and reservation ids."""
    return airline.user(user_id)


def get_reservation_details(airline: Airline, reservation_id: ReservationId) -> Entity:
    """The reservation with its flights, passengers, bags, insurance and payments."""
    return show_reservation(airline, airline.reservation(reservation_id))


def get_flight_status(airline: Airline, flight_number: FlightNumber, date: Date) -> str:
    """How a flight stands on a date, in a word."""
    return airline.day(flight_number, date)["status"]


def list_all_airports(airline: Airline) -> list[Entity]:
    """Each airport: its code and its city."""
    return airline.state.base.meta.get("airports", [])


def search_direct_flight(airline: Airline, origin: Origin, destination: Destination, date: Date) -> list[Entity]:
    """Flights that can be booked between two airports on a date, full ones too."""
    shown_date = None if airline.tau2 else date
    return list(_available(airline, origin, destination, date, shown_date))


def search_onestop_flight(airline: Airline, origin: Origin, destination: Destination, date: Date) -> list[list[Entity]]:
    """Pairs of flights that can be booked, the second leaving where and not before the first one lands."""
    pairs: list[list[Entity]] = []
    for first in _available(airline, origin, None, date, date):
        landing = first["scheduled_arrival_time_est"]
        later = _next_day(airline, date) if NEXT_DAY in landing else date
        # The published tool compares the text with its "+1", so that a departure at the very minute is left out.
        earliest = landing if airline.tau2 else landing.removesuffix(NEXT_DAY)
        pairs += [
            [first, second]
            for second in _available(airline, first["destination"], destination, later, later)
            if second["scheduled_departure_time_est"] >= earliest
        ]
    return pairs


def calculate(airline: Airline, expression: Expression) -> str:
    """The value of an arithmetic expression, rounded to two decimals, as text."""
    return work_out(expression)


def transfer_to_human_agents(airline: Airline, summary: Summary) -> str:
    """Hands the conversation over; changes no state."""
    return "Transfer successful"


def show_reservation(airline: Airline, reservation: Entity) -> Entity:
    """A reservation as tools return it: with a null status when `tau2` is on."""
    return {**reservation, "status": reservation.get("status")} if airline.tau2 else reservation


def _available(
    airline: Airline, origin: str, destination: str | None, date: str, shown_date: str | None
) -> Iterator[Entity]:
    for flight_number in flights_from(airline.state.base).get(origin, ()):
        flight = airline.flight(flight_number)
        day = flight["dates"].get(date)
        if destination in (None, flight["destination"]) and day is not None and day["status"] == "available":
            yield {
                "flight_number": flight_number,
                "origin": origin,
                "destination": flight["destination"],
                "status": "available",
                "scheduled_departure_time_est": flight["scheduled_departure_time_est"],
                "scheduled_arrival_time_est": flight["scheduled_arrival_time_est"],
                "date": shown_date,
                "available_seats": day["available_seats"],
                "prices": day["prices"],
            }


def _next_day(airline: Airline, date: str) -> str:
    if airline.tau2:
        # The published tool knows one month and writes no leading zero; such a day is then never found.
        return f"2024-05-{int(date[-2:]) + 1}"
    return (day_of.fromisoformat(date) + timedelta(days=1)).isoformat()
