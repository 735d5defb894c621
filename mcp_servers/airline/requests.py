"""One user request each about a reservation as it is: cancel, bags, passengers, compensation.

Knows nothing about MCP or grading. Each builder takes a Scene and answers a Request, or None where the scene doesn't
fit (the caller draws another). Requests that choose flights are in trips.py, forbidden ones in refusals.py.
"""

from __future__ import annotations

from mcp_servers.airline.bookings import BAG_PRICE
from mcp_servers.airline.data import free_bags, new_person
from mcp_servers.airline.scene import FLOWN, Scene, named
from mcp_servers.drafts import Action, Request
from mcp_servers.state import Entity

CANCELLED_PAY, DELAYED_PAY = 100, 50
"""Dollars of compensation for each passenger."""
COVERED = ("health", "weather")
"""Reasons that travel insurance covers."""


def cancel(scene: Scene) -> Request | None:
    """Cancel a reservation for a reason that the policy accepts."""
    reservation = scene.reservation
    statuses, reasons = scene.statuses(), accepted_reasons(scene)
    if any(status in FLOWN for status in statuses) or not reasons:
        return None
    reason = scene.wording.reason(scene.rng.choice(reasons))
    text = scene.wording.say("cancel", reservation=scene.name_reservation(), reason=reason)
    others = [id for id in scene.user["reservations"] if id != reservation["reservation_id"]]
    careless = [[cancelling(id)] for id in others]
    careless.append([cancelling(reservation["reservation_id"]), certificate(scene, CANCELLED_PAY * scene.people)])
    request = Request(text, [*scene.looked, *checks(scene)], [cancelling(reservation["reservation_id"])], careless)
    if scene.harder and scene.rng.random() < 0.4:
        paid = sum(entry["amount"] for entry in reservation["payment_history"])
        request.text += " " + scene.wording.say("ask_refund")
        request.communicate.append(str(paid))
    return request


def bags(scene: Scene) -> Request | None:
    """Add checked bags, some of which may be free."""
    reservation, rng = scene.reservation, scene.rng
    if not scene.untouched():
        return None
    count = rng.choice((1, 2, 3))
    total = reservation["total_baggages"] + count
    free = free_bags(scene.user["membership"], reservation["cabin"], scene.people)
    paid_before = reservation["nonfree_baggages"]
    paid = max(paid_before, total - free)
    method = scene.payer(BAG_PRICE * (paid - paid_before))
    if method is None or (scene.harder and paid in (paid_before, paid_before + count)):
        return None
    pay = scene.wording.say("charge", method=scene.name_method(method))
    text = scene.wording.say("bags", reservation=scene.name_reservation(), bags=_bags(count), pay=pay)
    wrong = [number for number in (paid_before + count, paid_before) if number != paid]
    careless = [[bagging(reservation, total, number, method["id"])] for number in wrong]
    others = [one["id"] for one in scene.methods("credit_card", "gift_card") if one is not method]
    careless += [[bagging(reservation, total, paid, other)] for other in others if paid != paid_before]
    other = (_bags(count), _bags(count % 3 + 1))
    return Request(text, scene.looked, [bagging(reservation, total, paid, method["id"])], careless, other=other)


def passengers(scene: Scene) -> Request | None:
    """Correct a passenger's last name or date of birth, or replace one by somebody else."""
    reservation, rng = scene.reservation, scene.rng
    people: list[Entity] = reservation["passengers"]
    if not scene.untouched() or (scene.harder and len(people) == 1):
        return None
    place = rng.randrange(len(people))
    old, other = people[place], new_person(rng)
    kind = rng.choice(("rename", "birthday", "replace")) if not scene.harder else "replace"
    new = {"rename": {**old, "last_name": other["last_name"]}, "birthday": {**old, "dob": other["dob"]}}.get(kind)
    if kind == "replace":
        saved = [one for one in scene.user["saved_passengers"] if one not in people]
        new = rng.choice([*saved, other])
    if new is None or named(new) in [named(one) for one in people if one is not old] or new == old:
        return None
    words = {"old": named(old), "new": named(new), "dob": new["dob"]}
    text = scene.wording.say(kind, reservation=scene.name_reservation(), **words)
    right = [*people[:place], new, *people[place + 1 :]]
    wrong_dob = {**new, "dob": "1990-01-01" if kind == "birthday" else other["dob"] if new != other else old["dob"]}
    swapped = [[*people[:n], new, *people[n + 1 :]] for n in range(len(people)) if n != place]
    wrong = [*swapped, [*people[:place], wrong_dob, *people[place + 1 :]]]
    careless = [[_renaming(reservation, one)] for one in wrong if one != right]
    born = (new["dob"], f"{int(new['dob'][:4]) - 1}{new['dob'][4:]}") if new["dob"] in text else None
    return Request(text, scene.looked, [_renaming(reservation, right)], careless, other=born)


def compensation(scene: Scene) -> Request | None:
    """A certificate for a cancelled flight, or for a delayed one after the trip was cancelled."""
    statuses, reservation = scene.statuses(), scene.reservation
    if not entitled(scene) or any(status in FLOWN for status in statuses):
        return None
    if "cancelled" in statuses:
        text = scene.wording.say("compensate", reservation=scene.name_reservation())
        amount, before = CANCELLED_PAY, list[Action]()
    elif "delayed" in statuses and scene.harder and accepted_reasons(scene):
        text = scene.wording.say("compensate_delay", reservation=scene.name_reservation())
        if not (scene.recent() or reservation["cabin"] == "business"):
            return None
        amount, before = DELAYED_PAY, [cancelling(reservation["reservation_id"])]
    else:
        return None
    if scene.harder and scene.people == 1 and amount == CANCELLED_PAY:
        return None
    wrong = [each for each in (DELAYED_PAY, CANCELLED_PAY) if each != amount]
    careless = [[*before, certificate(scene, each * scene.people)] for each in wrong]
    if scene.people > 1:
        careless.insert(0, [*before, certificate(scene, amount)])
    careless.append(before or [cancelling(reservation["reservation_id"])])
    writes = [*before, certificate(scene, amount * scene.people)]
    return Request(text, [*scene.looked, *checks(scene)], writes, careless)


def accepted_reasons(scene: Scene) -> list[str]:
    """The names of reasons for which the policy lets the reservation be cancelled."""
    reasons: list[str] = list(COVERED) if scene.reservation["insurance"] == "yes" else []
    if scene.recent() or scene.reservation["cabin"] == "business":
        reasons = ["plans", "plans", *COVERED]
    # Who says that a flight was cancelled is right, or is lying.
    return [*reasons, "airline", "airline"] if "cancelled" in scene.statuses() else reasons


def entitled(scene: Scene) -> bool:
    """Whether the policy gives this user compensation for this reservation when it asks for it."""
    reservation = scene.reservation
    return (
        scene.user["membership"] != "regular" or reservation["insurance"] == "yes" or reservation["cabin"] == "business"
    )


def checks(scene: Scene) -> list[Action]:
    """Looks how the flights of the reservation stand."""
    return [
        ("get_flight_status", {"flight_number": segment["flight_number"], "date": segment["date"]})
        for segment in scene.reservation["flights"]
    ]


def cancelling(reservation_id: str) -> Action:
    """Cancels a reservation."""
    return "cancel_reservation", {"reservation_id": reservation_id}


def certificate(scene: Scene, amount: int) -> Action:
    """Sends the user a certificate."""
    return "send_certificate", {"user_id": scene.user["user_id"], "amount": amount}


def bagging(reservation: Entity, total: int, paid: int, payment_id: str) -> Action:
    """Sets the bags of a reservation."""
    numbers = {"total_baggages": total, "nonfree_baggages": paid, "payment_id": payment_id}
    return "update_reservation_baggages", {"reservation_id": reservation["reservation_id"], **numbers}


def _bags(count: int) -> str:
    return f"{count} checked bag{'s' if count > 1 else ''}"


def _renaming(reservation: Entity, people: list[Entity]) -> Action:
    arguments = {"reservation_id": reservation["reservation_id"], "passengers": people}
    return "update_reservation_passengers", arguments
