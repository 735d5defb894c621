"""The airline tools that make and end reservations or give certificates, each with its checks before the first change.

Knows nothing about MCP. With `airline.tau2` they keep the published oddities (three new ids at most, a cancellation
that credits no gift card, releases no seat and can be repeated); without, they behave as the policy says. Listed for
callers in tools.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mcp_servers.airline.itinerary import check_trip, new_segment, take_seats
from mcp_servers.airline.reads import show_reservation
from mcp_servers.airline.records import (
    Amount,
    Cabin,
    Destination,
    FlightInfo,
    Flights,
    FlightType,
    Insurance,
    Origin,
    PaidBags,
    Passenger,
    Passengers,
    Payment,
    Payments,
    Reservation,
    ReservationId,
    TotalBags,
    UserId,
)
from mcp_servers.airline.state import RESERVATIONS, USERS, Airline, AirlineError
from mcp_servers.state import Entity

BAG_PRICE = 50
INSURANCE_PRICE = 30
MOST_PASSENGERS = 5
MOST_PAYMENTS = {"certificate": 1, "credit_card": 1, "gift_card": 3}
TAU2_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
TAU2_CERTIFICATES = (3221322, 3221323, 3221324)


def book_reservation(
    airline: Airline,
    user_id: UserId,
    origin: Origin,
    destination: Destination,
    flight_type: FlightType,
    cabin: Cabin,
    flights: Flights,
    passengers: Passengers,
    payment_methods: Payments,
    total_baggages: TotalBags,
    nonfree_baggages: PaidBags,
    insurance: Insurance,
) -> Entity:
    """Books the trip: takes seats and money, uses certificates up."""
    wanted = [airline.read(FlightInfo, dict(flight)) for flight in flights]
    people = [airline.read(Passenger, dict(passenger)).model_dump() for passenger in passengers]
    payments = [airline.read(Payment, dict(payment)).model_dump() for payment in payment_methods]
    user = airline.user(user_id)
    reservation_id = _new_reservation_id(airline)
    terms = airline.read(
        Reservation,
        {
            "flight_type": flight_type,
            "cabin": cabin,
            "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
        },
    )
    _check_party(airline, people, terms)
    segments = [new_segment(airline, flight, cabin, len(people)) for flight in wanted]
    check_trip(airline, {"origin": origin, "destination": destination, "flight_type": flight_type}, segments)
    price = sum(segment["price"] for segment in segments) * len(people)
    price += INSURANCE_PRICE * len(people) if insurance == "yes" else 0
    price += BAG_PRICE * nonfree_baggages
    _check_payments(airline, user, payments, price)
    _collect(airline, user_id, payments)
    take_seats(airline, segments, cabin, len(people))
    booked: Entity = {
        "reservation_id": reservation_id,
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": segments,
        "passengers": people,
        "payment_history": payments if airline.tau2 else _in_profile_order(user, payments),
        "created_at": airline.now,
        "total_baggages": terms.total_baggages,
        "nonfree_baggages": terms.nonfree_baggages,
        "insurance": insurance,
    }
    airline.state.add(RESERVATIONS, reservation_id, booked)
    airline.state.edit(USERS, user_id)["reservations"].append(reservation_id)
    return show_reservation(airline, booked)


def cancel_reservation(airline: Airline, reservation_id: ReservationId) -> Entity:
    """Cancels the whole trip: refunds what was paid to where it came from and gives the seats back."""
    airline.open_reservation(reservation_id)
    reservation = airline.state.edit(RESERVATIONS, reservation_id)
    history: list[Entity] = reservation["payment_history"]
    if airline.tau2:
        history += [_payment(entry["payment_id"], -entry["amount"]) for entry in history]
    else:
        take_seats(airline, reservation["flights"], reservation["cabin"], -len(reservation["passengers"]))
        for payment_id, amount in list(_refunds(history)):
            history.append(_payment(payment_id, -amount))
            _give_back(airline, reservation["user_id"], payment_id, amount)
    reservation["status"] = "cancelled"
    return show_reservation(airline, reservation)


def send_certificate(airline: Airline, user_id: UserId, amount: Amount) -> str:
    """Adds a new certificate to the user's payment methods."""
    methods = airline.user(user_id)["payment_methods"]
    numbers = TAU2_CERTIFICATES if airline.tau2 else range(901, 1000)
    certificate_id = next((one for one in (f"certificate_{n}" for n in numbers) if one not in methods), None)
    if certificate_id is None:
        raise AirlineError("Too many certificates")
    if float(amount) <= 0 and not airline.tau2:
        raise AirlineError(f"A certificate is over an amount of money, not {amount}")
    certificate = {"source": "certificate", "id": certificate_id, "amount": float(amount)}
    airline.state.edit(USERS, user_id)["payment_methods"][certificate_id] = certificate
    return f"Certificate {certificate_id} added to user {user_id} with amount {amount}."


def _new_reservation_id(airline: Airline) -> str:
    ids = TAU2_RESERVATIONS if airline.tau2 else (f"Z{number}" for number in range(100, 1000))
    for reservation_id in ids:
        if airline.state.get(RESERVATIONS, reservation_id) is None:
            return reservation_id
    raise AirlineError("Too many reservations")


def _check_party(airline: Airline, people: list[Entity], terms: Reservation) -> None:
    if airline.tau2:
        return
    if not 1 <= len(people) <= MOST_PASSENGERS:
        raise AirlineError(f"A reservation has 1 to {MOST_PASSENGERS} passengers, not {len(people)}")
    if not 0 <= terms.nonfree_baggages <= terms.total_baggages:
        bags = f"{terms.nonfree_baggages} of {terms.total_baggages}"
        raise AirlineError(f"Paid bags are some of all the checked bags, not {bags}")


def _check_payments(airline: Airline, user: Entity, payments: list[Entity], price: float) -> None:
    methods = user["payment_methods"]
    for payment in payments:
        payment_id, amount = payment["payment_id"], payment["amount"]
        if payment_id not in methods:
            raise AirlineError(f"Payment method {payment_id} not found")
        if methods[payment_id].get("amount", amount) < amount:
            raise AirlineError(f"Not enough balance in payment method {payment_id}")
    paid = sum(payment["amount"] for payment in payments)
    if paid != price:
        raise AirlineError(f"Payment amount does not add up, total price is {price}, but paid {paid}")
    if not airline.tau2:
        _check_mix(payments, methods)


def _check_mix(payments: list[Entity], methods: Entity) -> None:
    for payment_id, times in Counter(payment["payment_id"] for payment in payments).items():
        if times > 1:
            raise AirlineError(f"Payment method {payment_id} is given {times} times")
    for source, count in Counter(methods[payment["payment_id"]]["source"] for payment in payments).items():
        if count > MOST_PAYMENTS[source]:
            raise AirlineError(f"At most {MOST_PAYMENTS[source]} {source} for a reservation, not {count}")
    for payment in payments:
        if payment["amount"] <= 0:
            raise AirlineError(f"Payment method {payment['payment_id']} can't pay {payment['amount']}")


def _collect(airline: Airline, user_id: str, payments: list[Entity]) -> None:
    methods = airline.state.edit(USERS, user_id)["payment_methods"]
    for payment in payments:
        payment_id = payment["payment_id"]
        if payment_id not in methods:
            # A certificate that is given twice is gone the second time; these are the published tool's words for it.
            raise AirlineError(repr(payment_id))
        if methods[payment_id]["source"] == "gift_card":
            methods[payment_id]["amount"] -= payment["amount"]
        elif methods[payment_id]["source"] == "certificate":
            del methods[payment_id]


def _in_profile_order(user: Entity, payments: list[Entity]) -> list[Entity]:
    """In the order of the profile, so that paying the same in another order makes the same reservation."""
    places = list(user["payment_methods"])
    return sorted(payments, key=lambda payment: places.index(payment["payment_id"]))


def _refunds(history: list[Entity]) -> Iterator[tuple[str, float]]:
    """(Payment method id, amount) to pay back: to where it came from, and together what is still paid."""
    paid: dict[str, float] = {}
    for entry in history:
        paid[entry["payment_id"]] = paid.get(entry["payment_id"], 0) + entry["amount"]
    left = sum(paid.values())
    for payment_id, amount in paid.items():
        refund = min(amount, left)
        if refund > 0:
            left -= refund
            yield payment_id, refund


def _give_back(airline: Airline, user_id: str, payment_id: str, amount: float) -> None:
    methods = airline.state.edit(USERS, user_id)["payment_methods"]
    if payment_id not in methods:
        # Only certificates ever leave a profile.
        methods[payment_id] = {"source": "certificate", "id": payment_id, "amount": float(amount)}
    elif methods[payment_id]["source"] == "gift_card":
        methods[payment_id]["amount"] += amount


def _payment(payment_id: str, amount: float) -> Entity:
    return {"payment_id": payment_id, "amount": amount}
