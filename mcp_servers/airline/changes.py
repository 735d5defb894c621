"""The airline tools that change a reservation: its flights and cabin, its bags, its passengers.

Knows nothing about MCP. With `airline.tau2` they keep the published oddities (seats that never change, trips that lead
anywhere, bags that become fewer); without, they behave as the policy says. Listed for callers in tools.py.
"""

from __future__ import annotations

from mcp_servers.airline.bookings import BAG_PRICE
from mcp_servers.airline.itinerary import check_trip, new_segment, take_seats
from mcp_servers.airline.reads import show_reservation
from mcp_servers.airline.records import (
    CABINS,
    Cabin,
    FlightInfo,
    NewFlights,
    PaidBags,
    Passenger,
    Passengers,
    PaymentId,
    ReservationId,
    TotalBags,
)
from mcp_servers.airline.state import RESERVATIONS, USERS, Airline, AirlineError
from mcp_servers.state import Entity


def update_reservation_flights(
    airline: Airline, reservation_id: ReservationId, cabin: Cabin, flights: NewFlights, payment_id: PaymentId
) -> Entity:
    """Replaces all flights and the cabin; a flight kept in its cabin keeps its price, the others cost today's."""
    wanted = [airline.read(FlightInfo, dict(flight)) for flight in flights]
    reservation = airline.open_reservation(reservation_id)
    passengers = len(reservation["passengers"])
    if cabin not in CABINS and not airline.tau2:
        raise AirlineError(f"Cabin must be one of {', '.join(CABINS)}, not {cabin[:40]!r}")
    held: list[Entity] = reservation["flights"] if cabin == reservation["cabin"] else []
    segments = [_kept(held, flight) or new_segment(airline, flight, cabin, passengers) for flight in wanted]
    check_trip(airline, reservation, segments)
    price = sum(segment["price"] for segment in segments) - sum(one["price"] for one in reservation["flights"])
    _charge(airline, reservation, payment_id, price * passengers)
    if not airline.tau2:
        take_seats(airline, [one for one in segments if one not in held], cabin, passengers)
        given_up = [one for one in reservation["flights"] if one not in segments or not held]
        take_seats(airline, given_up, reservation["cabin"], -passengers)
    reservation = airline.state.edit(RESERVATIONS, reservation_id)
    reservation["flights"] = [dict(segment) for segment in segments]
    reservation["cabin"] = cabin
    return show_reservation(airline, reservation)


def update_reservation_baggages(
    airline: Airline,
    reservation_id: ReservationId,
    total_baggages: TotalBags,
    nonfree_baggages: PaidBags,
    payment_id: PaymentId,
) -> Entity:
    """Sets the checked bags and charges for those that are newly paid."""
    reservation = airline.open_reservation(reservation_id)
    paid_before, before = reservation["nonfree_baggages"], reservation["total_baggages"]
    if not airline.tau2:
        if total_baggages < before or nonfree_baggages < paid_before:
            raise AirlineError(f"Bags can be added to the {before} ({paid_before} paid), not taken away")
        if nonfree_baggages > total_baggages:
            raise AirlineError(
                f"Paid bags are some of all the checked bags, not {nonfree_baggages} of {total_baggages}"
            )
    _charge(airline, reservation, payment_id, BAG_PRICE * max(0, nonfree_baggages - paid_before))
    reservation = airline.state.edit(RESERVATIONS, reservation_id)
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    return show_reservation(airline, reservation)


def update_reservation_passengers(airline: Airline, reservation_id: ReservationId, passengers: Passengers) -> Entity:
    """Replaces all passengers by as many others."""
    people = [airline.read(Passenger, dict(passenger)).model_dump() for passenger in passengers]
    reservation = airline.open_reservation(reservation_id)
    if len(people) != len(reservation["passengers"]):
        raise AirlineError("Number of passengers does not match")
    reservation = airline.state.edit(RESERVATIONS, reservation_id)
    reservation["passengers"] = people
    return show_reservation(airline, reservation)


def _kept(held: list[Entity], wanted: FlightInfo) -> Entity | None:
    """The segment of the reservation that is this flight, at the price that was paid."""
    same = (one for one in held if (one["flight_number"], one["date"]) == (wanted.flight_number, wanted.date))
    return next(same, None)


def _charge(airline: Airline, reservation: Entity, payment_id: str, price: float) -> None:
    """Moves the difference (a refund where negative) and notes it in the reservation's payments."""
    methods = airline.user(reservation["user_id"])["payment_methods"]
    if payment_id not in methods:
        raise AirlineError("Payment method not found")
    if methods[payment_id]["source"] == "certificate":
        raise AirlineError("Certificate cannot be used to update reservation")
    if methods[payment_id]["source"] == "gift_card":
        if methods[payment_id]["amount"] < price:
            raise AirlineError("Gift card balance is not enough")
        if price:
            airline.state.edit(USERS, reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price
    if price:
        reservation = airline.state.edit(RESERVATIONS, reservation["reservation_id"])
        reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
