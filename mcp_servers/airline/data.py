"""The generated airline base: users and their reservations, the same for the same seed, over the flights of flights.py.

Knows nothing about tasks or MCP. Identifiers are short so that very small models can copy them; the tools take any.
Users and their reservations are divided over the splits; flights and airports are common to all.
"""

from __future__ import annotations

import random
from functools import lru_cache

from mcp_servers.airline.bookings import BAG_PRICE, INSURANCE_PRICE
from mcp_servers.airline.flights import AIRPORTS, DAYS, PLACES, TODAY, Timetable
from mcp_servers.airline.records import CABINS
from mcp_servers.airline.state import FLIGHTS, NOW, RESERVATIONS, USERS
from mcp_servers.state import Base, Entity

SPLIT_USERS = {"train": 2400, "validation": 300, "held_out": 300}
# Z begins the ids of reservations that agents book.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXY"
FREE_BAGS = {"regular": (0, 1, 2), "silver": (1, 2, 3), "gold": (2, 3, 4)}
"""Membership → free checked bags of each passenger, by cabin in the order of CABINS."""


@lru_cache(maxsize=4)
def generated_base(seed: int = 0) -> Base:
    """The base of a seed: 3,000 users with 2 or 3 reservations each; `meta["splits"]` has the users by split."""
    rng = random.Random(f"airline-base-{seed}")
    timetable = Timetable(rng)
    numbers = {letter: rng.sample(range(100, 1000), 900) for letter in LETTERS}
    users: dict[str, Entity] = {}
    reservations: dict[str, Entity] = {}
    splits: dict[str, list[str]] = {split: [] for split in SPLIT_USERS}
    for split, count in SPLIT_USERS.items():
        while len(splits[split]) < count:
            user = _user(rng)
            if user["user_id"] in users:
                continue
            users[user["user_id"]] = user
            splits[split].append(user["user_id"])
            for letter in rng.sample([letter for letter in LETTERS if numbers[letter]], rng.choice((2, 2, 3))):
                reservation = _reservation(rng, f"{letter}{numbers[letter].pop()}", user, timetable)
                reservations[reservation["reservation_id"]] = reservation
                user["reservations"].append(reservation["reservation_id"])
    airports = [{"iata": iata, "city": city} for iata, city in AIRPORTS.items()]
    meta = {"splits": splits, "seed": seed, "now": NOW, "airports": airports}
    return Base({FLIGHTS: timetable.flights, USERS: users, RESERVATIONS: reservations}, meta)


def free_bags(membership: str, cabin: str, passengers: int) -> int:
    """Checked bags that are free for a reservation."""
    return FREE_BAGS[membership][CABINS.index(cabin)] * passengers


def new_person(rng: random.Random) -> Entity:
    """Somebody made up."""
    return {
        "first_name": rng.choice(PLACES["first_names"]),
        "last_name": rng.choice(PLACES["last_names"]),
        "dob": f"{rng.randint(1950, 2007)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
    }


def _user(rng: random.Random) -> Entity:
    person = new_person(rng)
    number = rng.randint(100, 999)
    family = [{**new_person(rng), "last_name": person["last_name"]} for _ in range(rng.choice((0, 1, 1, 2)))]
    return {
        "user_id": f"{person['first_name']}_{person['last_name']}_{number}".lower(),
        "name": {"first_name": person["first_name"], "last_name": person["last_name"]},
        "address": {
            "address1": f"{rng.randint(1, 99)} {rng.choice(PLACES['streets'])} Street",
            "city": rng.choice(list(AIRPORTS.values())),
            "country": "Europe",
            "state": "",
            "zip": str(rng.randint(1000, 9999)),
        },
        "email": f"{person['first_name']}.{person['last_name']}{number}@example.com".lower(),
        "dob": person["dob"],
        "payment_methods": {method["id"]: method for method in _methods(rng)},
        "saved_passengers": [*family, new_person(rng)],
        "membership": rng.choices(("regular", "silver", "gold"), (5, 3, 2))[0],
        "reservations": [],
    }


def _methods(rng: random.Random) -> list[Entity]:
    cards = rng.choice((0, 1, 1, 2))
    # Certificates from 901 on are those that agents send.
    numbers = rng.sample(range(100, 900), 4)
    methods: list[Entity] = [
        {
            "source": "credit_card",
            "id": f"credit_card_{numbers[0]}",
            "brand": rng.choice(("visa", "mastercard")),
            "last_four": str(rng.randint(1000, 9999)),
        }
    ]
    methods += [
        {"source": "gift_card", "id": f"gift_card_{number}", "amount": rng.randint(3, 90) * 10}
        for number in numbers[1 : 1 + cards]
    ]
    if rng.random() < 0.5:
        methods.append({"source": "certificate", "id": f"certificate_{numbers[3]}", "amount": rng.randint(2, 16) * 25})
    return methods


def _reservation(rng: random.Random, reservation_id: str, user: Entity, timetable: Timetable) -> Entity:
    cabin = rng.choices(CABINS, (3, 5, 2))[0]
    people = [{**user["name"], "dob": user["dob"]}]
    people += rng.sample(user["saved_passengers"], min(len(user["saved_passengers"]), rng.choice((0, 0, 0, 1, 1, 2))))
    origin, destination, legs = timetable.trip(rng, round_trip=rng.random() < 0.4)
    segments = [timetable.segment(flight_number, date, cabin) for flight_number, date in legs]
    free = free_bags(user["membership"], cabin, len(people))
    bags = rng.choice((0, 1, 2)) + rng.choice((0, 0, free))
    insurance = "yes" if rng.random() < 0.35 else "no"
    price = sum(segment["price"] for segment in segments) * len(people) + BAG_PRICE * max(0, bags - free)
    price += INSURANCE_PRICE * len(people) if insurance == "yes" else 0
    payers = [method for method in user["payment_methods"].values() if method["source"] != "certificate"]
    return {
        "reservation_id": reservation_id,
        "user_id": user["user_id"],
        "origin": origin,
        "destination": destination,
        "flight_type": "round_trip" if segments[-1]["destination"] == origin else "one_way",
        "cabin": cabin,
        "flights": segments,
        "passengers": [dict(person) for person in people],
        "payment_history": [{"payment_id": rng.choice(payers)["id"], "amount": price}],
        "created_at": _created(rng, legs[0][1]),
        "total_baggages": bags,
        "nonfree_baggages": max(0, bags - free),
        "insurance": insurance,
    }


def _created(rng: random.Random, first_date: str) -> str:
    """When it was booked: well within the last 24 hours or well before them, and before the first flight."""
    if first_date > TODAY and rng.random() < 0.25:
        return f"{DAYS[DAYS.index(TODAY)]}T{rng.randint(0, 13):02}:{rng.randint(0, 59):02}:00"
    return f"2026-02-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00"
