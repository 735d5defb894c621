"""The generated timetable: which flights there are, how each stands on each day, and trips that can be made of them.

Knows nothing about users or tools. Every airport is joined to every hub, some to each other. Used by data.py.
"""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

from mcp_servers.airline.records import CABINS
from mcp_servers.state import Entity

PLACES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("places.toml").read_text(encoding="utf-8"))
AIRPORTS: dict[str, str] = PLACES["airports"]
DAYS = [f"2026-03-{day:02}" for day in range(8, 29)]
TODAY = "2026-03-15"
TIME_NOW = "15:00:00"
CABIN_PRICES = {"basic_economy": 0.6, "economy": 1.0, "business": 2.4}


class Timetable:
    """All flights of a generated base."""

    def __init__(self, rng: random.Random) -> None:
        self.flights: dict[str, Entity] = {}
        self._prices: dict[tuple[str, str], dict[str, int]] = {}
        self._by_route: dict[tuple[str, str], list[str]] = {}
        numbers = rng.sample(range(100, 1000), 400)
        for origin, destination in _routes():
            minutes, fare = rng.randint(9, 24) * 10, rng.randint(90, 190)
            for _ in range(rng.choice((1, 2, 2, 3))):
                flight = _flight(rng, f"SV{numbers.pop()}", origin, destination, minutes)
                self._by_route.setdefault((origin, destination), []).append(flight["flight_number"])
                self.flights[flight["flight_number"]] = flight
                for date in DAYS:
                    prices = _prices(rng, fare)
                    self._prices[flight["flight_number"], date] = prices
                    flight["dates"][date] = _day(rng, flight, date, prices)

    def trip(self, rng: random.Random, *, round_trip: bool) -> tuple[str, str, list[tuple[str, str]]]:
        """Origin, destination, and (flight number, date) of each flight; most leave in the days to come."""
        start = rng.choices((rng.randint(0, 6), 7, 8, rng.randint(9, 15)), (2, 1, 2, 8))[0]
        while True:
            origin, destination = rng.sample(list(AIRPORTS), 2)
            there = self._way(rng, origin, destination, DAYS[start])
            back = self._way(rng, destination, origin, DAYS[start + rng.randint(2, 5)]) if round_trip else []
            if there and (back or not round_trip):
                return origin, destination, [*there, *back]

    def segment(self, flight_number: str, date: str, cabin: str) -> Entity:
        """A flight as a reservation holds it."""
        flight = self.flights[flight_number]
        return {
            "flight_number": flight_number,
            "origin": flight["origin"],
            "destination": flight["destination"],
            "date": date,
            "price": self._prices[flight_number, date][cabin],
        }

    def _way(self, rng: random.Random, origin: str, destination: str, date: str) -> list[tuple[str, str]]:
        """A direct flight, or two over a hub; nothing where there are none on that day."""
        direct = self._by_route.get((origin, destination))
        if direct:
            return [(rng.choice(direct), date)]
        pairs = [
            (one, two)
            for hub in PLACES["hubs"]
            for one in self._by_route.get((origin, hub), ())
            for two in self._by_route.get((hub, destination), ())
            if self._lands(one) <= self.flights[two]["scheduled_departure_time_est"]
        ]
        return [(number, date) for number in rng.choice(pairs)] if pairs else []

    def _lands(self, flight_number: str) -> str:
        """When it lands; after every departure of the day where that is on the day after."""
        time = self.flights[flight_number]["scheduled_arrival_time_est"]
        return "99" if "+" in time else time


def _routes() -> list[tuple[str, str]]:
    hubs: list[str] = PLACES["hubs"]
    pairs = [(hub, other) for hub in hubs for other in AIRPORTS if other not in hubs or hub < other]
    pairs += [(pair[:3], pair[4:]) for pair in PLACES["cross"]]
    return [way for one, other in pairs for way in ((one, other), (other, one))]


def _flight(rng: random.Random, flight_number: str, origin: str, destination: str, minutes: int) -> Entity:
    leaves = rng.randint(12, 44) * 30
    lands = leaves + minutes
    return {
        "flight_number": flight_number,
        "origin": origin,
        "destination": destination,
        "scheduled_departure_time_est": _time(leaves),
        "scheduled_arrival_time_est": _time(lands % 1440) + ("+1" if lands >= 1440 else ""),
        "dates": {},
    }


def _prices(rng: random.Random, fare: int) -> dict[str, int]:
    today = fare + rng.randint(-30, 40)
    return {cabin: int(today * CABIN_PRICES[cabin]) + rng.randint(0, 9) for cabin in CABINS}


def _day(rng: random.Random, flight: Entity, date: str, prices: dict[str, int]) -> Entity:
    leaves, lands = flight["scheduled_departure_time_est"], flight["scheduled_arrival_time_est"].removesuffix("+1")
    chance = rng.random()
    if chance < 0.06:
        return {"status": "cancelled"}
    if date < TODAY or (date == TODAY and leaves < TIME_NOW):
        status = "flying" if date == TODAY and (lands > TIME_NOW or lands < leaves) else "landed"
        arrival = "estimated_arrival_time_est" if status == "flying" else "actual_arrival_time_est"
        return {"status": status, "actual_departure_time_est": f"{date}T{leaves}", arrival: f"{date}T{lands}"}
    if date == TODAY or (date == DAYS[DAYS.index(TODAY) + 1] and chance < 0.3):
        status = "delayed" if chance < 0.3 else "on time"
        times = {"estimated_departure_time_est": f"{date}T{leaves}", "estimated_arrival_time_est": f"{date}T{lands}"}
        return {"status": status, **times}
    seats = {cabin: 0 if rng.random() < 0.08 else rng.randint(1, 16) for cabin in CABINS}
    return {"status": "available", "available_seats": seats, "prices": prices}


def _time(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}:00"
