"""Conversations in which an expert, or on purpose a careless agent, works retail tasks; and tasks played over pipes.

Each turn is one tool call with a short note that quotes what is about to be used, or the closing text. It knows nothing
about models or tokens. Run as a command, so that nobody has to import it:
`python -m mcp_servers.retail.demonstrations --split train --count 100 --seed 0 --sloppy 0.0` prints JSON lines, the
tools first; `--play` reads commands from standard input instead (see `play`). `training/nano` reads both.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mcp_servers.drafts import Action
from mcp_servers.generator import Task, expert_actions
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.requests import wanted
from mcp_servers.retail.state import ORDERS, PRODUCTS, Retail, open_retail
from mcp_servers.retail.tasks import KINDS, generate_tasks, policy, sloppy_actions
from mcp_servers.retail.tools import TOOLS, call_tool
from mcp_servers.retail.wording import phrases
from mcp_servers.state import Base, Entity, canonical

Message = dict[str, Any]
ORDER_ID = re.compile(r"#[A-Z][0-9]+")
ASKED = {
    "cancel": "cancel",
    "return": "return",
    "exchange": "swap",
    "modify_items": "swap",
    "order_address": "address",
    "payment": "payment",
}
"""Request kind → the word for it in notes. Whether a swap is an exchange or a change, the order's status says."""
CLOSINGS = {
    "cancel_pending_order": "Order {order_id} is cancelled.",
    "modify_pending_order_address": "The address of order {order_id} is changed.",
    "modify_pending_order_payment": "The payment of order {order_id} is changed.",
    "modify_pending_order_items": "The items of order {order_id} are changed.",
    "exchange_delivered_order_items": "The exchange in order {order_id} is requested.",
    "return_delivered_order_items": "The return in order {order_id} is requested.",
    "modify_user_address": "The address of {user_id} is changed.",
}
REFUSALS = {
    "bad_reason": "Sorry, orders can't be cancelled for that reason.",
    "not_owner": "Sorry, that order belongs to another customer.",
    "unknown_user": "Sorry, I can't find this customer.",
    "unavailable": "Sorry, that variant is not available.",
    "refund_elsewhere": "Sorry, refunds go to the original payment method or a gift card.",
    "wrong_status": "Sorry, the status of the order rules that out.",
    "balance_short": "Sorry, the gift card doesn't cover the order.",
}


@dataclass(slots=True)
class Notebook:
    """What the demonstrator has seen so far, from which each turn's note is written."""

    requests: dict[str, str]
    """Order id → what is asked of it, in the order of the message."""
    customer: str = ""
    """Answer of the look-up that identified the customer."""
    orders: dict[str, Entity] = field(default_factory=dict[str, Entity])
    """Orders seen, by id."""
    unread: str = ""
    """The order whose owner and status have not been noted yet."""
    profile: Entity | None = None
    """The customer's profile, once read."""
    unfound: str = ""
    """The product whose wanted variant has not been noted yet."""
    wishes: dict[str, tuple[Entity, Entity]] = field(default_factory=dict[str, tuple[Entity, Entity]])
    """Product id → (order line, variant asked for), as the demonstrator understood the customer."""

    def learn(self, name: str, arguments: dict[str, Any], text: str) -> None:
        """Takes in a tool's answer."""
        if name.startswith("find_user"):
            self.customer = text
        elif text.startswith("Error"):
            return
        elif name == "get_order_details":
            self.unread = arguments["order_id"]
            self.orders[self.unread] = json.loads(text)
        elif name == "get_user_details":
            self.profile = json.loads(text)
        elif name == "get_product_details":
            self.unfound = arguments["product_id"]

    def check(self) -> str:
        """Customer, owner and status of an order just read, once."""
        if not self.unread:
            return ""
        order = self.orders[self.unread]
        self.unread = ""
        whose = "own" if order["user_id"] == self.customer else "other"
        return (
            f"{self.requests.get(order['order_id'])}: {self.customer} / {order['user_id']} {whose}, {order['status']}. "
        )

    def plan(self) -> str:
        """What is asked of which order, before anything is looked up."""
        return ", ".join(f"{request} {order_id}" for order_id, request in self.requests.items()) + "."

    def find(self) -> str:
        """The wanted variant of a product just read, once."""
        if not self.unfound:
            return ""
        _, variant = self.wishes[self.unfound]
        self.unfound = ""
        return f"{_values(variant)}: {variant['item_id']} {json.dumps(variant['available'])}. "


def converse(base: Base, task: Task, actions: list[Action], *, refuses: bool) -> list[Message]:
    """System, user, calls with notes, answers and closing text of one demonstration."""
    retail, book = open_retail(base), Notebook(_requests(task), wishes=_wishes(base, task, actions))
    messages: list[Message] = [
        {"role": "system", "content": task["system_prompt"]},
        {"role": "user", "content": task["user_message"]},
    ]
    for index, (name, arguments) in enumerate(actions):
        note = book.check() + book.find() + _note(book, name, arguments)
        call = {
            "id": f"call-{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        messages.append({"role": "assistant", "content": note.strip(), "tool_calls": [call]})
        text = call_tool(retail, name, arguments).text
        book.learn(name, arguments, text)
        messages.append({"role": "tool", "tool_call_id": f"call-{index}", "content": text})
    messages.append(
        {"role": "assistant", "content": _closing(book, actions, task["metadata"]["refusal"] if refuses else None)}
    )
    return messages


def demonstrations(base: Base, given: argparse.Namespace) -> Iterator[Message]:
    """One record a task: `id`, `kind`, `difficulty`, `refusal`, `careless` (it shows a mistake) and `messages`."""
    kinds, levels = given.kinds.split(","), [int(level) for level in given.levels.split(",") if level]
    for number in range(given.offset, given.offset + given.count):
        rng = random.Random(f"sloppy-{given.split}-{given.seed}-{number}")
        level = rng.choice(levels) if levels else None
        task = generate_tasks(given.split, given.seed, number, 1, base=base, kinds=kinds, difficulty=level)[0]
        mistake = sloppy_actions(task, base) if rng.random() < given.sloppy else None
        right = mistake is None
        actions = expert_actions(task) if mistake is None else mistake
        messages = converse(base, task, actions, refuses=task["is_refusal"] and right)
        record = {name: task[name] for name in ("id", "kind", "difficulty")}
        yield {**record, "refusal": task["metadata"]["refusal"], "careless": not right, "messages": messages}


def tool_schemas() -> list[Message]:
    """The sixteen tools as a chat request lists them: names and parameters in the server's order."""
    schemas: list[Message] = []
    for name, tool in TOOLS.items():
        parameters = list(inspect.signature(tool).parameters)[1:]
        shape: dict[str, Any] = {"type": "object", "properties": {parameter: {} for parameter in parameters}}
        schemas.append({"type": "function", "function": {"name": name, "parameters": shape}})
    return schemas


class Table:
    """Tasks being played: each has a session of its own."""

    def __init__(self) -> None:
        self.base = generated_base()
        self.seats: list[tuple[Task, Retail]] = []

    def do(self, command: Message) -> Any:
        """One command of `play`."""
        if command["do"] == "open":
            tasks = generate_tasks(
                command["split"], command["seed"], command["offset"], command["count"], base=self.base
            )
            self.seats = [(task, open_retail(self.base)) for task in tasks]
            return [{**task, "expected": None} for task in tasks]
        task, retail = self.seats[int(command["seat"])]
        if command["do"] == "call":
            return call_tool(retail, command["name"], command["arguments"]).text
        return canonical(retail.state.changes()) == canonical(task["expected"]["changes"])


def play(lines: Iterator[str]) -> None:
    """Answers each JSON line with one: `open` (split, seed, offset, count) → tasks, `call` (seat, name, arguments) →
    text, `grade` (seat) → whether the state is as expected. A seat is a task's place in the last `open`.
    """
    table = Table()
    for line in lines:
        print(json.dumps(table.do(json.loads(line))), flush=True)


def _wishes(base: Base, task: Task, actions: list[Action]) -> dict[str, tuple[Entity, Entity]]:
    wishes: dict[str, tuple[Entity, Entity]] = {}
    for name, arguments in actions:
        if name == "get_product_details":
            line = _line_of(base, task, arguments["product_id"])
            if line is not None:
                wishes[arguments["product_id"]] = (line, _understood(base, task, line))
    for _, arguments in actions:
        if "new_item_ids" not in arguments:
            continue
        order = base.get(ORDERS, arguments["order_id"]) or {"items": []}
        for old, new in zip(arguments["item_ids"], arguments["new_item_ids"], strict=True):
            line = next(line for line in order["items"] if line["item_id"] == old)
            wishes[line["product_id"]] = (line, _variants(base, line)[new])
    return wishes


def _line_of(base: Base, task: Task, product_id: str) -> Entity | None:
    orders = (base.get(ORDERS, order_id) or {"items": []} for order_id in task["metadata"]["order_ids"])
    return next((line for order in orders for line in order["items"] if line["product_id"] == product_id), None)


def _understood(base: Base, task: Task, line: Entity) -> Entity:
    """The variant that the message asks for: the one whose wanted options are named most fully."""
    message = task["user_message"].split(line["name"], 1)[-1]

    def named(variant: Entity) -> tuple[int, int]:
        found = re.search(rf"\b{re.escape(wanted(line, variant))}\b", message)
        return (len(wanted(line, variant)), -found.start()) if found else (0, 0)

    others = [variant for item_id, variant in _variants(base, line).items() if item_id != line["item_id"]]
    return max(others, key=named)


def _variants(base: Base, line: Entity) -> dict[str, Entity]:
    product = base.get(PRODUCTS, line["product_id"])
    if product is None:
        raise KeyError(f"product {line['product_id']!r} of an order line is not in the base")
    return product["variants"]


def _values(item: Entity) -> str:
    return " ".join(item["options"].values())


def _quoted(line: Entity) -> str:
    """An order line word for word as the order shows it, from its name to its item id."""
    return f'"{line["name"]}", "product_id": "{line["product_id"]}", "item_id": "{line["item_id"]}"'


def _requests(task: Task) -> dict[str, str]:
    """Order id → request, read off the phrases that the message was made of (the last request was drawn first)."""
    lines = phrases()[task["split"]]
    asked = [ASKED[kind] for used in task["metadata"]["phrases"] for kind in ASKED if used in lines[kind]]
    return dict(zip(ORDER_ID.findall(task["user_message"]), reversed(asked), strict=True))


def _note(book: Notebook, name: str, arguments: dict[str, Any]) -> str:
    if name.startswith("find_user"):
        return book.plan()
    if name == "get_product_details":
        line, variant = book.wishes[arguments["product_id"]]
        return f"{_quoted(line)} {_values(line)} -> {_values(variant)}."
    if name == "cancel_pending_order":
        return f"Reason: {arguments['reason']}."
    if name == "return_delivered_order_items" and arguments["order_id"] in book.orders:
        lines = {line["item_id"]: line for line in book.orders[arguments["order_id"]]["items"]}
        named = ", ".join(_quoted(lines[item_id]) for item_id in arguments["item_ids"])
        return f"{named}; {arguments['payment_method_id']}."
    if "new_item_ids" in arguments:
        pairs = zip(arguments["item_ids"], arguments["new_item_ids"], strict=True)
        return ", ".join(f"{old} -> {new}" for old, new in pairs) + f"; {arguments['payment_method_id']}."
    if name == "modify_pending_order_payment":
        return _payment_note(book, arguments["order_id"], arguments["payment_method_id"])
    return ""


def _payment_note(book: Notebook, order_id: str, method_id: str) -> str:
    balance = book.profile["payment_methods"][method_id].get("balance") if book.profile else None
    if balance is None:
        return f"{method_id}."
    return f"{method_id} {balance} for {book.orders[order_id]['payment_history'][0]['amount']}."


def _closing(book: Notebook, actions: list[Action], refusal: str | None) -> str:
    note = book.check() + book.find()
    if refusal is None:
        name, arguments = actions[-1]
        return note + CLOSINGS[name].format(**arguments)
    if refusal == "bad_reason":
        note += "Reason: other. "
    if refusal == "balance_short" and book.profile:
        card = next(id for id, method in book.profile["payment_methods"].items() if method["source"] == "gift_card")
        note += _payment_note(book, actions[-2][1]["order_id"], card) + " "
    return note + REFUSALS[refusal]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="train", help="whose users and phrases")
    parser.add_argument("--count", type=int, default=100, help="how many conversations")
    parser.add_argument("--offset", type=int, default=0, help="number of the first task")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks")
    parser.add_argument("--base", type=int, default=0, help="seed of the world: its catalogue, customers and orders")
    parser.add_argument(
        "--sloppy", type=float, default=0.0, help="share of tasks shown with a typical mistake, where there is one"
    )
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="request kinds to draw from, commas between; repeat one to weigh it"
    )
    parser.add_argument(
        "--levels", default="", help="difficulties to draw from, like --kinds; empty draws them as tasks are served"
    )
    parser.add_argument("--play", action="store_true", help="answer commands from standard input instead")
    given = parser.parse_args()
    if given.play:
        play(iter(sys.stdin))
        return
    print(json.dumps({"tools": tool_schemas(), "system": policy()}))
    for record in demonstrations(generated_base(given.base), given):
        print(json.dumps(record))


if __name__ == "__main__":
    main()
