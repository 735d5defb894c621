"""A task server in 70 lines: `python -m examples.rooms`. docs/your-own-server.md explains it."""

import random
from typing import Annotated, Any

from pydantic import Field

from mcp_servers.command import arguments, main
from mcp_servers.errors import ToolFault
from mcp_servers.state import Base, State
from mcp_servers.toolbox import Toolbox
from mcp_servers.world import Grade, ToolText, World

DAYS, ROOMS = ("Monday", "Tuesday", "Wednesday"), ("Ada", "Babbage", "Curie")
PEOPLE = {"train": ("Ines", "Omar"), "validation": ("Lena", "Paul"), "held_out": ("Mira", "Theo")}
BASE = Base({"days": {"Monday": {"Ada": "Zoe"}, "Tuesday": {}, "Wednesday": {"Ada": "Zoe", "Curie": "Zoe"}}})
POLICY = "You book meeting rooms. Look who has which room first. Book what you are asked to book, and nothing else."
Day = Annotated[str, Field(description=f"One of {', '.join(DAYS)}.")]


class Office:
    """A session as the tools see it."""

    def __init__(self, state: State) -> None:
        self.state = state


def bookings(office: Office, day: Day) -> dict[str, str]:
    """Who has which room."""
    taken = office.state.get("days", day)
    if taken is None:
        raise ToolFault(f"There is no day {day[:40]!r}; the days are {', '.join(DAYS)}.")
    return {room: taken.get(room, "free") for room in ROOMS}


def book(office: Office, day: Day, room: str, person: str) -> dict[str, str]:
    """Books a room for a day."""
    if bookings(office, day).get(room) != "free":
        raise ToolFault(f"{room[:40]} is no room that is free on {day}: {bookings(office, day)}")
    office.state.edit("days", day)[room] = person
    return bookings(office, day)


TOOLBOX = Toolbox(reads=(bookings,), writes=(book,))
TEXTS = {"bookings": ToolText("Bookings", "Who has which room."), "book": ToolText("Book", "Books a free room.")}


def tasks(split: str, seed: int = 0, offset: int = 0, count: int = 1, **_: Any) -> list[dict[str, Any]]:
    """Seeded tasks; what is expected comes from executing the right action."""
    if split not in PEOPLE:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(PEOPLE)}")
    found: list[dict[str, Any]] = []
    for n in range(offset, offset + count):
        rng, office = random.Random(f"{split}-{seed}-{n}"), Office(State(BASE))
        person, day = rng.choice(PEOPLE[split]), rng.choice(DAYS)
        room = rng.choice([room for room, holder in bookings(office, day).items() if holder == "free"])
        TOOLBOX.call(office, "book", {"day": day, "room": room, "person": person})
        text = f"I am {person}. Please book {room} for me on {day}."
        task = {"id": f"{split}-{seed}-{n}", "split": split, "kind": "book", "user_message": text}
        found.append(task | {"expected": office.state.changes()})
    return found


def grade(state: State, task: dict[str, Any], answer: str) -> Grade:
    """Passed where the state is the expected one."""
    return Grade(state.changes() == task["expected"], f"expected {task['expected']}, found {state.changes()}")


if __name__ == "__main__":
    main(arguments("rooms", "Rooms."), lambda _: World("rooms", BASE, TOOLBOX, TEXTS, POLICY, Office, tasks, grade))
