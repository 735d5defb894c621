"""The shapes of the airline world: what tools take and answer, as MCP clients are told.

Knows nothing about tools or state. The tools take their parameter types from here, server.py the outputs. What stands
inside an object is read by the pydantic models, whose words in case of an error are also those of the published tools.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

CABINS = ("basic_economy", "economy", "business")


class FlightInfo(BaseModel):
    """One flight on one date."""

    flight_number: str = Field(description="Flight number, such as SV148.")
    date: str = Field(description="Date of departure, such as 2026-03-20.")


class Passenger(BaseModel):
    """Somebody who flies."""

    first_name: str = Field(description="First name.")
    last_name: str = Field(description="Last name.")
    dob: str = Field(description="Date of birth, such as 1990-04-05.")


class Payment(BaseModel):
    """What one payment method pays."""

    payment_id: str = Field(description="Id of one of the user's payment methods, such as gift_card_482.")
    amount: int = Field(description="Whole dollars.")


class Reservation(BaseModel):
    """The terms of a reservation, for checking them; the order of the fields is the order of complaints."""

    flight_type: Literal["round_trip", "one_way"]
    cabin: Literal["business", "economy", "basic_economy"]
    total_baggages: int
    nonfree_baggages: int
    insurance: Literal["yes", "no"]


UserId = Annotated[str, Field(description="User id, such as nora_berg_482.")]
ReservationId = Annotated[str, Field(description="Reservation id, such as K482.")]
Origin = Annotated[str, Field(description="IATA code of the airport of departure, such as LIS.")]
Destination = Annotated[str, Field(description="IATA code of the airport of arrival, such as OSL.")]
Date = Annotated[str, Field(description="Date of departure, such as 2026-03-20.")]
FlightNumber = Annotated[str, Field(description="Flight number, such as SV148.")]
FlightType = Annotated[str, Field(description="Either 'one_way' or 'round_trip'.")]
Cabin = Annotated[str, Field(description="'basic_economy', 'economy' or 'business'; the same for all flights.")]
Flights = Annotated[list[FlightInfo], Field(description="All flights of the trip, in the order they are flown.")]
NewFlights = Annotated[
    list[FlightInfo],
    Field(description="All flights of the trip as it is to be, in the order they are flown, unchanged ones too."),
]
Passengers = Annotated[list[Passenger], Field(description="All passengers.")]
Payments = Annotated[list[Payment], Field(description="What each payment method pays; together exactly the price.")]
PaymentId = Annotated[
    str, Field(description="Id of the user's credit card or gift card that pays, or is refunded, the difference.")
]
TotalBags = Annotated[int, Field(description="Checked bags of the whole reservation, free ones included.")]
PaidBags = Annotated[int, Field(description="Those of the checked bags that are not free.")]
Insurance = Annotated[str, Field(description="Travel insurance: 'yes' or 'no'.")]
Amount = Annotated[float, Field(description="Dollars.")]
Expression = Annotated[str, Field(description="Numbers with + - * / and parentheses.")]
Summary = Annotated[str, Field(description="What the user wants, for the person who takes over.")]


class Name(TypedDict):
    """A person's name."""

    first_name: str
    last_name: str


class Address(TypedDict):
    """Where somebody lives."""

    address1: str
    address2: NotRequired[str | None]
    city: str
    country: str
    state: str
    zip: str


class PaymentMethod(TypedDict):
    """A way to pay; a gift card and a certificate have an amount, a credit card a brand and last digits."""

    source: str
    id: str
    brand: NotRequired[str]
    last_four: NotRequired[str]
    amount: NotRequired[float]


class Person(TypedDict):
    """Somebody who flies."""

    first_name: str
    last_name: str
    dob: str


class User(TypedDict):
    """A member."""

    user_id: str
    name: Name
    address: Address
    email: str
    dob: str
    payment_methods: dict[str, PaymentMethod]
    saved_passengers: list[Person]
    membership: str
    reservations: list[str]


class Segment(TypedDict):
    """One flight of a reservation; the price is for one passenger."""

    flight_number: str
    origin: str
    destination: str
    date: str
    price: int


class Paid(TypedDict):
    """Money that moved; what was refunded is negative."""

    payment_id: str
    amount: float


class Booked(TypedDict):
    """A reservation; the status is `cancelled`, null or left out."""

    reservation_id: str
    user_id: str
    origin: str
    destination: str
    flight_type: str
    cabin: str
    flights: list[Segment]
    passengers: list[Person]
    payment_history: list[Paid]
    created_at: str
    total_baggages: int
    nonfree_baggages: int
    insurance: str
    status: NotRequired[str | None]


class Day(TypedDict):
    """A flight on one date: its status, and seats and prices by cabin where it can be booked."""

    status: str
    available_seats: NotRequired[dict[str, int]]
    prices: NotRequired[dict[str, int]]


class Flight(TypedDict):
    """A flight that goes daily: date → how it stands."""

    flight_number: str
    origin: str
    destination: str
    scheduled_departure_time_est: str
    scheduled_arrival_time_est: str
    dates: dict[str, Day]
