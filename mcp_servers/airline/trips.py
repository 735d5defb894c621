"""One user request each about flights: move one, change the cabin, book a trip, or only say what something costs.

Knows nothing about MCP or grading. Built like requests.py: None where the scene doesn't fit. Used by tasks.py and
refusals.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_servers.airline.bookings import BAG_PRICE, INSURANCE_PRICE
from mcp_servers.airline.data import free_bags, new_person
from mcp_servers.airline.flights import AIRPORTS, DAYS, TODAY
from mcp_servers.airline.reads import search_direct_flight, search_onestop_flight
from mcp_servers.airline.records import CABINS
from mcp_servers.airline.requests import bags
from mcp_servers.airline.scene import Scene, named
from mcp_servers.airline.state import open_airline
from mcp_servers.drafts import Action, Request
from mcp_servers.state import Entity

COMING = DAYS[DAYS.index(TODAY) + 2 :]
CABIN_NAMES = {"basic_economy": "basic economy", "economy": "economy", "business": "business"}
Offer = Sequence[Entity]
"""A way to fly: one flight, or two with a stop between them, as the search tools answer them."""


@dataclass(frozen=True, slots=True)
class Trip:
    """What is to be booked."""

    route: tuple[str, str]
    """Origin and destination."""
    cabin: str
    """The cabin of all flights."""
    offers: Sequence[Offer]
    """The way there and, on a round trip, the way back."""
    people: list[Entity]
    """Who flies."""
    total_bags: int
    """All checked bags."""
    paid_bags: int
    """Those that aren't free."""
    insurance: str
    """`yes` or `no`."""
    payers: list[Entity]
    """Payment methods in the order in which they are used up; the last pays the rest."""

    def price(self) -> int:
        """What it costs in dollars."""
        fares = sum(flight["prices"][self.cabin] for offer in self.offers for flight in offer)
        extra = INSURANCE_PRICE if self.insurance == "yes" else 0
        return (fares + extra) * len(self.people) + BAG_PRICE * self.paid_bags


def change_flights(scene: Scene) -> Request | None:
    """Move one flight of a reservation to another date, the others staying as they are."""
    reservation, rng = scene.reservation, scene.rng
    if not scene.untouched() or reservation["cabin"] == "basic_economy":
        return None
    return moved(scene, rng.randrange(len(reservation["flights"])))


def moved(scene: Scene, place: int) -> Request | None:
    """The request to move the flight at that place of the reservation."""
    reservation, rng, cabin = scene.reservation, scene.rng, scene.reservation["cabin"]
    segment = reservation["flights"][place]
    date = rng.choice([day for day in COMING if day != segment["date"]])
    chosen = choose(scene, segment["origin"], segment["destination"], date, cabin, scene.people)
    if chosen is None or len(chosen[0]) > 1:
        return None
    (flight,), which, others = chosen
    difference = (flight["prices"][cabin] - segment["price"]) * scene.people
    method = scene.payer(difference)
    if method is None:
        return None
    cities = {"origin": AIRPORTS[segment["origin"]], "destination": AIRPORTS[segment["destination"]]}
    text = scene.wording.say(
        "change",
        reservation=scene.name_reservation(),
        date=scene.spoken_date(date),
        which=scene.wording.say(which),
        pay=scene.wording.say("settle", method=scene.name_method(method)),
        **cities,
    )
    held = [_flight_of(one) for one in reservation["flights"]]
    right, *wrong = ([*held[:place], _flight_of(one), *held[place + 1 :]] for one in (flight, *(o[0] for o in others)))
    careless = [[changing(reservation, cabin, flights, method)] for flights in wrong]
    careless += [[changing(reservation, cabin, right, one)] for one in _other_cards(scene, method)]
    reads = [*scene.looked, ("search_direct_flight", _search(segment["origin"], segment["destination"], date))]
    return Request(text, reads, [changing(reservation, cabin, right, method)], careless)


def change_cabin(scene: Scene) -> Request | None:
    """Put all flights of a reservation into another cabin."""
    reservation, rng = scene.reservation, scene.rng
    if not scene.untouched():
        return None
    cabin = rng.choice([cabin for cabin in CABINS if cabin != reservation["cabin"]])
    difference = _cabin_difference(scene, cabin)
    method = scene.payer(difference) if difference is not None else None
    if difference is None or method is None:
        return None
    text = scene.wording.say(
        "cabin",
        reservation=scene.name_reservation(),
        cabin=CABIN_NAMES[cabin],
        pay=scene.wording.say("settle", method=scene.name_method(method)),
    )
    flights = [_flight_of(one) for one in reservation["flights"]]
    third = next(one for one in CABINS if one not in (cabin, reservation["cabin"]))
    careless = [[changing(reservation, third, flights, method)]]
    careless += [[changing(reservation, cabin, flights, one)] for one in _other_cards(scene, method)]
    request = Request(text, _looks(scene), [changing(reservation, cabin, flights, method)], careless)
    request.other = (CABIN_NAMES[cabin], CABIN_NAMES[third])
    if scene.harder:
        request.text += " " + scene.wording.say("ask_difference")
        request.communicate.append(str(abs(difference)))
    return request


def book(scene: Scene) -> Request | None:
    """Book a trip: the right flights, bags, insurance, and payments that add up."""
    drawn = _drawn_trip(scene)
    if drawn is None:
        return None
    trip, which, others = drawn
    alone = len(trip.people) == 1
    more = [f"{named(person)} (born {person['dob']})" for person in trip.people[1:]]
    number = trip.total_bags
    names = [scene.name_method(method) for method in trip.payers]
    wording = scene.wording
    text = wording.say(
        "book_round" if len(trip.offers) > 1 else "book",
        origin=AIRPORTS[trip.route[0]],
        destination=AIRPORTS[trip.route[1]],
        date=scene.spoken_date(trip.offers[0][0]["date"]),
        back=scene.spoken_date(trip.offers[-1][0]["date"]),
        cabin=CABIN_NAMES[trip.cabin],
        party="" if alone else wording.say("party", people=" and ".join(more)),
        which=wording.say(f"{which}_stop" if len(trip.offers[0]) > 1 else which),
        bags=wording.say("with_bags", bags=f"{number} checked bag{'s' if number > 1 else ''}") if number else "",
        insurance=wording.say("insured" if trip.insurance == "yes" else "uninsured"),
        pay=wording.say("split" if len(names) > 1 else "pay", method=names[0], other=names[-1]),
    )
    careless = [[booking(scene, one)] for one in _careless_trips(scene, trip, others)]
    # Slots that stay empty leave their spaces behind.
    request = Request(re.sub(r" +([,.])", r"\1", text), _searches(trip), [booking(scene, trip)], careless)
    if scene.harder:
        request.text += " " + wording.say("ask_total")
        request.communicate.append(str(trip.price()))
    return request


def quote(scene: Scene) -> Request | None:
    """Say what more bags, another cabin or a whole trip would cost, and change nothing."""
    kind = scene.rng.choice(("bags", "cabin", "book") if scene.harder else ("bags", "cabin"))
    request = {"bags": bags, "cabin": change_cabin, "book": book}[kind](scene)
    if request is None:
        return None
    if kind == "bags":
        arguments = request.writes[0][1]
        price = BAG_PRICE * (arguments["nonfree_baggages"] - scene.reservation["nonfree_baggages"])
        request.communicate = [str(price)]
    elif not request.communicate:
        cabin = request.writes[0][1]["cabin"]
        request.communicate = [str(abs(_cabin_difference(scene, cabin) or 0))]
    if request.communicate == ["0"]:
        return None
    # What the user would have asked for is what a careless agent does.
    text = f"{scene.wording.say('quote')} {request.text}"
    return Request(text, request.reads, [], [request.writes], request.communicate)


def choose(
    scene: Scene, origin: str, destination: str, date: str, cabin: str, people: int
) -> tuple[Offer, str, list[Offer]] | None:
    """(The offer to take, by which of the phrases `only`, `cheapest`, `earliest`, the others); None where unclear.

    Direct flights are taken where there are any; all with enough seats for `people`.
    """
    airline, route = open_airline(scene.base), (origin, destination, date)
    direct = [(flight,) for flight in search_direct_flight(airline, *route)]
    stopping = [tuple(pair) for pair in search_onestop_flight(airline, *route)] if not direct else []
    offers: list[Offer] = [
        offer for offer in [*direct, *stopping] if all(flight["available_seats"][cabin] >= people for flight in offer)
    ]
    if not offers or len(offers) > 12:
        return None
    which = "only" if len(offers) == 1 else scene.rng.choice(("cheapest", "earliest"))
    prices = [sum(flight["prices"][cabin] for flight in offer) for offer in offers]
    leaving = [offer[0]["scheduled_departure_time_est"] for offer in offers]
    measure = leaving if which == "earliest" else prices
    best = min(measure)
    if measure.count(best) > 1:
        return None
    chosen = offers[measure.index(best)]
    return chosen, which, [offer for offer in offers if offer is not chosen]


def changing(reservation: Entity, cabin: str, flights: list[Entity], method: Entity) -> Action:
    """Sets flights and cabin of a reservation."""
    arguments = {"reservation_id": reservation["reservation_id"], "cabin": cabin, "flights": flights}
    return "update_reservation_flights", {**arguments, "payment_id": method["id"]}


def booking(scene: Scene, trip: Trip) -> Action:
    """Books the trip, each payment method paying what it can until the price is paid."""
    left, payments = trip.price(), list[Entity]()
    for method in trip.payers:
        amount = min(left, int(method.get("amount", left)))
        if amount:
            payments.append({"payment_id": method["id"], "amount": amount})
        left -= amount
    return "book_reservation", {
        "user_id": scene.user["user_id"],
        "origin": trip.route[0],
        "destination": trip.route[1],
        "flight_type": "round_trip" if len(trip.offers) > 1 else "one_way",
        "cabin": trip.cabin,
        "flights": [_flight_of(flight) for offer in trip.offers for flight in offer],
        "passengers": trip.people,
        "payment_methods": payments,
        "total_baggages": trip.total_bags,
        "nonfree_baggages": trip.paid_bags,
        "insurance": trip.insurance,
    }


def _drawn_trip(scene: Scene) -> tuple[Trip, str, list[Offer]] | None:
    """A trip that can be booked, how its flights are chosen, and the other ways to fly the first leg."""
    rng, user = scene.rng, scene.user
    origin, destination = rng.sample(list(AIRPORTS), 2)
    cabin = rng.choice(CABINS)
    people = [{**user["name"], "dob": user["dob"]}]
    if scene.harder:
        people += rng.sample([*user["saved_passengers"], new_person(rng)], rng.choice((0, 1, 2)))
    start = rng.randrange(len(COMING) - 4)
    there = choose(scene, origin, destination, COMING[start], cabin, len(people))
    if there is None or (len(there[0]) > 1 and not scene.harder):
        return None
    offers, which = [there[0]], there[1]
    if scene.harder and rng.random() < 0.4:
        back = choose(scene, destination, origin, COMING[start + rng.randint(1, 4)], cabin, len(people))
        if back is None or (back[1], len(back[0])) != (which, len(there[0])):
            return None
        offers.append(back[0])
    total = rng.choice((0, 0, 1, 2, 3))
    paid = max(0, total - free_bags(user["membership"], cabin, len(people)))
    card = scene.methods("credit_card")[0]
    payers = [card]
    if scene.harder and rng.random() < 0.6:
        others = scene.methods("certificate", "gift_card")
        payers = [rng.choice(others), card] if others else [card]
    insurance = "yes" if rng.random() < 0.3 else "no"
    trip = Trip((origin, destination), cabin, tuple(offers), people, total, paid, insurance, payers)
    return trip, which, there[2]


def _careless_trips(scene: Scene, trip: Trip, others: list[Offer]) -> list[Trip]:
    """The trip with a typical mistake each: all bags free or all paid, another flight, insurance, payment."""
    wrong = [replace(trip, paid_bags=number) for number in (trip.total_bags, 0) if number != trip.paid_bags]
    wrong += [replace(trip, offers=(other, *trip.offers[1:])) for other in others]
    wrong += [replace(trip, payers=trip.payers[-1:])] if len(trip.payers) > 1 else []
    wrong.append(replace(trip, insurance="no" if trip.insurance == "yes" else "yes"))
    return wrong


def _cabin_difference(scene: Scene, cabin: str) -> int | None:
    """What the cabin costs more than what was paid for the flights; None where there aren't enough seats."""
    difference = 0
    for segment in scene.reservation["flights"]:
        day = scene.day(segment["flight_number"], segment["date"])
        if day["available_seats"][cabin] < scene.people:
            return None
        difference += day["prices"][cabin] - segment["price"]
    return difference * scene.people


def _looks(scene: Scene) -> list[Action]:
    """Looks at the reservation and at what its flights cost today."""
    segments = scene.reservation["flights"]
    searches = [_search(one["origin"], one["destination"], one["date"]) for one in segments]
    return [*scene.looked, *(("search_direct_flight", search) for search in searches)]


def _searches(trip: Trip) -> list[Action]:
    """Looks for the flights of a trip."""
    ways = zip(trip.offers, (trip.route, trip.route[::-1]), strict=False)
    tools = {1: "search_direct_flight", 2: "search_onestop_flight"}
    return [(tools[len(offer)], _search(route[0], route[1], offer[0]["date"])) for offer, route in ways]


def _search(origin: str, destination: str, date: str) -> dict[str, str]:
    return {"origin": origin, "destination": destination, "date": date}


def _other_cards(scene: Scene, method: Entity) -> list[Entity]:
    return [one for one in scene.methods("credit_card", "gift_card") if one is not method]


def _flight_of(flight: Entity) -> Entity:
    return {"flight_number": flight["flight_number"], "date": flight["date"]}
