"""What a request is drawn from: a user, one of its reservations, phrases; and how a user speaks of them.

Knows nothing about MCP or grading. Used by requests.py, trips.py and refusals.py (one request each) and tasks.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import date as day_of

from mcp_servers.airline.flights import AIRPORTS
from mcp_servers.airline.state import FLIGHTS, RESERVATIONS
from mcp_servers.drafts import Action
from mcp_servers.state import Base, Entity
from mcp_servers.wording import Wording

SOURCE_NAMES = {"credit_card": "my credit card", "gift_card": "my gift card", "certificate": "my certificate"}
FLOWN = ("landed", "flying")
RECENT = "2026-03-14T15:00:00"
"""Reservations made since then are less than a day old."""


@dataclass(slots=True)
class Scene:
    """What a builder draws from."""

    base: Base
    """The world."""
    user: Entity
    """Who asks."""
    reservation: Entity
    """The reservation that the request is about."""
    wording: Wording
    """Phrases of the task's split."""
    rng: random.Random
    """Where the draws come from."""
    harder: bool = False
    """Whether the request is to need more: looking for the reservation, several payment methods, one-stop flights."""
    looked: list[Action] = field(default_factory=list[Action])
    """Look-ups that finding the reservation took."""

    @property
    def people(self) -> int:
        """Passengers of the reservation."""
        return len(self.reservation["passengers"])

    def name_reservation(self) -> str:
        """The reservation as the user calls it: by its id or, where that is harder and clear, by where it goes."""
        reservation = self.reservation
        ids = self.user["reservations"]
        if self.harder and reservation["reservation_id"] in ids and self.rng.random() < 0.5:
            route = (reservation["origin"], reservation["destination"])
            routes = [(one["origin"], one["destination"]) for one in (self.held(id) for id in ids)]
            if routes.count(route) == 1:
                self.looked = [look(id) for id in ids]
                return self.wording.say("by_route", origin=AIRPORTS[route[0]], destination=AIRPORTS[route[1]])
        self.looked = [look(reservation["reservation_id"])]
        return self.wording.say("by_id", reservation=reservation["reservation_id"])

    def held(self, reservation_id: str) -> Entity:
        """A reservation of the base."""
        return entity(self.base, RESERVATIONS, reservation_id)

    def statuses(self) -> list[str]:
        """How each flight of the reservation stands."""
        days = (self.day(segment["flight_number"], segment["date"]) for segment in self.reservation["flights"])
        return [day["status"] for day in days]

    def day(self, flight_number: str, date: str) -> Entity:
        """How a flight stands on a date."""
        return entity(self.base, FLIGHTS, flight_number)["dates"][date]

    def untouched(self) -> bool:
        """Whether every flight of the reservation is still to be flown as planned."""
        return all(status == "available" for status in self.statuses())

    def recent(self) -> bool:
        """Whether the reservation is less than a day old."""
        return self.reservation["created_at"] >= RECENT

    def methods(self, *sources: str) -> list[Entity]:
        """The user's payment methods of these sources; all of them where none is given."""
        return [one for one in self.user["payment_methods"].values() if not sources or one["source"] in sources]

    def name_method(self, method: Entity) -> str:
        """A payment method as the user calls it."""
        if len(self.methods(method["source"])) > 1:
            return f"{SOURCE_NAMES[method['source']]} {method['id']}"
        return SOURCE_NAMES[method["source"]]

    def payer(self, price: int) -> Entity | None:
        """A card that can pay the price; None where the draw falls on one that can't."""
        method = self.rng.choice(self.methods("credit_card", "gift_card"))
        return method if method.get("amount", price) >= price else None

    def spoken_date(self, date: str) -> str:
        """A date as the user says it."""
        day = day_of.fromisoformat(date)
        return self.rng.choice((date, f"{day:%B} {day.day}", f"{day.day} {day:%B}"))


def look(reservation_id: str) -> Action:
    """Looks at a reservation."""
    return "get_reservation_details", {"reservation_id": reservation_id}


def named(person: Entity) -> str:
    """First and last name."""
    return f"{person['first_name']} {person['last_name']}"


def entity(base: Base, kind: str, entity_id: str) -> Entity:
    """An entity that must be there; KeyError where it isn't."""
    found = base.get(kind, entity_id)
    if found is None:
        raise KeyError(f"the base lists {kind} {entity_id!r} but does not hold it")
    return found
