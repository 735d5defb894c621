"""The airline world over the state kit: what a session holds, how entities are found, and the error an agent reads.

Knows nothing about MCP, HTTP, tasks or grading. Used by the tools (reads.py, bookings.py, changes.py), tasks.py and
server.py.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from mcp_servers.errors import ToolFault
from mcp_servers.state import Base, Entity, State

USERS, FLIGHTS, RESERVATIONS = "users", "flights", "reservations"
NOW = "2026-03-15T15:00:00"
"""The time in the generated world; a base of another time has its own in `meta["now"]`."""
Read = TypeVar("Read", bound=BaseModel)


class AirlineError(ToolFault):
    """An airline tool can't do what was asked."""


class Airline:
    """One session of the airline world: its state, and whether tools keep the published oddities (`tau2`)."""

    __slots__ = ("state", "tau2")

    def __init__(self, state: State, tau2: bool = False) -> None:
        self.state = state
        self.tau2 = tau2

    @property
    def now(self) -> str:
        """The time, such as 2026-03-15T15:00:00; it stands still."""
        return self.state.base.meta.get("now", NOW)

    def user(self, user_id: str) -> Entity:
        """The user; AirlineError where there is none."""
        return self._found(USERS, user_id, f"User {user_id} not found")

    def reservation(self, reservation_id: str) -> Entity:
        """The reservation; AirlineError where there is none."""
        return self._found(RESERVATIONS, reservation_id, f"Reservation {reservation_id} not found")

    def open_reservation(self, reservation_id: str) -> Entity:
        """The reservation; AirlineError where there is none or, unless `tau2` is on, where it is cancelled."""
        found = self.reservation(reservation_id)
        if found.get("status") == "cancelled" and not self.tau2:
            raise AirlineError(f"Reservation {reservation_id} is cancelled")
        return found

    def flight(self, flight_number: str) -> Entity:
        """The flight with all its dates; AirlineError where there is none."""
        return self._found(FLIGHTS, flight_number, f"Flight {flight_number} not found")

    def day(self, flight_number: str, date: str) -> Entity:
        """How the flight stands on a date; AirlineError where there is none."""
        dates = self.flight(flight_number)["dates"]
        if date not in dates:
            raise AirlineError(f"Flight {flight_number} not found on date {date}")
        return dates[date]

    def read(self, model: type[Read], given: Entity) -> Read:
        """What an agent gave, as a record; AirlineError says what is wrong with it."""
        try:
            return model(**given)
        except ValidationError as error:
            if self.tau2:
                raise AirlineError(str(error)) from error
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise AirlineError(f"{model.__name__} {place}: {first['msg']}, got {first['input']!r}"[:400]) from error

    def _found(self, kind: str, entity_id: str, complaint: str) -> Entity:
        entity = self.state.get(kind, entity_id)
        if entity is None:
            raise AirlineError(complaint)
        return entity


def open_airline(base: Base, tau2: bool = False) -> Airline:
    """A fresh session over a base."""
    return Airline(State(base), tau2)


def flights_from(base: Base) -> dict[str, list[str]]:
    """Airport of departure → flight numbers in base order. No tool changes where a flight goes."""

    def build(base: Base) -> dict[str, list[str]]:
        index: dict[str, list[str]] = {}
        for flight_number in base.ids(FLIGHTS):
            flight = base.get(FLIGHTS, flight_number)
            if flight is not None:
                index.setdefault(flight["origin"], []).append(flight_number)
        return index

    return base.derived("flights_from", build)
