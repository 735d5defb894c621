"""The airline world as it is served: its base, its tools with what agents are told about them, tasks, grader, policy.

Knows nothing about HTTP. Made by `python -m mcp_servers.airline` and by tests; read by the kit (serve.py, control.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mcp_servers.airline.data import generated_base
from mcp_servers.airline.grade import grade
from mcp_servers.airline.records import Booked, User
from mcp_servers.airline.state import Airline
from mcp_servers.airline.tasks import generate_tasks, policy
from mcp_servers.airline.tau2 import tau2_base
from mcp_servers.airline.tools import TOOLBOX
from mcp_servers.state import Base
from mcp_servers.tau2_tasks import with_folder_tasks
from mcp_servers.world import ToolText, World

TEXTS = {
    "get_user_details": ToolText(
        "Get user", "A user's name, membership, payment methods, saved passengers and reservation ids.", User
    ),
    "get_reservation_details": ToolText(
        "Get reservation", "A reservation's flights, cabin, passengers, bags, insurance and payments.", Booked
    ),
    "get_flight_status": ToolText(
        "Get flight status", "How a flight stands on a date: available, on time, delayed, flying, landed or cancelled."
    ),
    "list_all_airports": ToolText("List airports", "All airports with their cities, as JSON."),
    "search_direct_flight": ToolText(
        "Search direct flights",
        "Flights between two airports on a date that can be booked, with seats and prices by cabin, as JSON.",
    ),
    "search_onestop_flight": ToolText(
        "Search one-stop flights", "Pairs of flights with one stop on a date that can be booked, as JSON."
    ),
    "calculate": ToolText("Calculate", "Works out an arithmetic expression, rounded to two decimals."),
    "transfer_to_human_agents": ToolText(
        "Transfer to a human", "Hands the user over to a person. Only for what no tool here can do."
    ),
    "book_reservation": ToolText(
        "Book", "Books a trip. The payments must add up to fares, insurance and paid bags exactly.", Booked
    ),
    "cancel_reservation": ToolText(
        "Cancel reservation",
        "Cancels a whole reservation and refunds it. Doesn't check whether that is allowed.",
        Booked,
    ),
    "send_certificate": ToolText("Send certificate", "Gives the user a certificate over an amount of dollars."),
    "update_reservation_flights": ToolText(
        "Change flights",
        "Sets all flights and the cabin of a reservation and settles the difference in price. Doesn't check whether "
        "that is allowed.",
        Booked,
        idempotent=True,
    ),
    "update_reservation_baggages": ToolText(
        "Change bags",
        "Sets the checked bags of a reservation and charges 50 for each newly paid one.",
        Booked,
        idempotent=True,
    ),
    "update_reservation_passengers": ToolText(
        "Change passengers", "Sets the passengers of a reservation, as many as before.", Booked, idempotent=True
    ),
}


def airline_world(base: Base | None = None, *, tau2: bool = False) -> World:
    """The world over a base (the generated one if none is given); `tau2` keeps the published oddities of its tools."""
    base = base or generated_base()
    return World(
        name="airline",
        base=base,
        toolbox=TOOLBOX,
        texts=TEXTS,
        policy=policy(),
        view=lambda state: Airline(state, tau2),
        tasks=partial(generate_tasks, base=base),
        grade=grade,
    )


def open_base(db: Path | None, seed: int) -> Base:
    """The base of a file (ours, or a τ²-bench db.json), or the generated one of a seed."""
    if db is None:
        return generated_base(seed)
    return tau2_base(db) if db.suffix == ".json" else Base.open(db)


def tau2_world(folder: Path) -> World:
    """The world over a τ²-bench airline folder: its data, its tasks, its policy, and tools with the published oddities.

    ServerError where something in the folder is missing or isn't what it should be.
    """
    return with_folder_tasks(airline_world(tau2_base(folder / "db.json"), tau2=True), folder)
