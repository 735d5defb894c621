"""The retail world as it is served: its base, its tools with what agents are told about them, tasks, grader and policy.

Knows nothing about HTTP. Made by `python -m mcp_servers.retail` and by tests; read by the kit (serve.py, control.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mcp_servers.retail.data import generated_base
from mcp_servers.retail.grade import grade
from mcp_servers.retail.records import Order, Product, User, Variant
from mcp_servers.retail.state import Retail
from mcp_servers.retail.tasks import generate_tasks, policy
from mcp_servers.retail.tau2 import tau2_base
from mcp_servers.retail.tools import TOOLBOX
from mcp_servers.state import Base
from mcp_servers.tau2_tasks import with_folder_tasks
from mcp_servers.world import ToolText, World

TEXTS = {
    "find_user_id_by_email": ToolText("Find user by e-mail", "Finds a user id by e-mail, without regard to case."),
    "find_user_id_by_name_zip": ToolText(
        "Find user by name and zip", "Finds a user id by first name, last name and the zip code of the default address."
    ),
    "get_user_details": ToolText(
        "Get user", "A user's name, default address, e-mail, payment methods and order ids.", User
    ),
    "get_order_details": ToolText(
        "Get order", "An order's owner, status, items, shipping address and payment history.", Order
    ),
    "get_product_details": ToolText(
        "Get product", "A product with all its items: options, price, and whether available.", Product
    ),
    "get_item_details": ToolText("Get item", "One item: its options, price, and whether it is available.", Variant),
    "list_all_product_types": ToolText("List products", "All product names with their product ids, as JSON text."),
    "calculate": ToolText("Calculate", "Works out an arithmetic expression, rounded to two decimals."),
    "transfer_to_human_agents": ToolText(
        "Transfer to a human", "Hands the customer over to a person. Only for what no tool here can do."
    ),
    "cancel_pending_order": ToolText(
        "Cancel order", "Cancels a pending order and refunds it. Allowed for two reasons only.", Order
    ),
    "modify_pending_order_address": ToolText(
        "Change order address", "Changes the shipping address of a pending order.", Order, idempotent=True
    ),
    "modify_pending_order_payment": ToolText(
        "Change order payment",
        "Pays a pending order with another of the customer's methods; a gift card must cover the whole order.",
        Order,
    ),
    "modify_pending_order_items": ToolText(
        "Change order items",
        "Replaces items of a pending order by other available items of the same products. Once per order: give all "
        "items in one call. The payment method settles the difference.",
        Order,
    ),
    "exchange_delivered_order_items": ToolText(
        "Exchange items",
        "Requests an exchange of items of a delivered order for other available items of the same products. Once per "
        "order: give all items in one call. The payment method settles the difference.",
        Order,
    ),
    "return_delivered_order_items": ToolText(
        "Return items",
        "Requests a return of items of a delivered order, refunded to the original payment method or a gift card. Once "
        "per order: give all items in one call.",
        Order,
    ),
    "modify_user_address": ToolText(
        "Change default address", "Changes the default address of a user; orders keep theirs.", User, idempotent=True
    ),
}


def retail_world(base: Base | None = None, *, tau2: bool = False) -> World:
    """The world over a base (the generated one if none is given); `tau2` keeps the published oddities of its tools."""
    base = base or generated_base()
    return World(
        name="retail",
        base=base,
        toolbox=TOOLBOX,
        texts=TEXTS,
        policy=policy(),
        view=lambda state: Retail(state, tau2),
        tasks=partial(generate_tasks, base=base),
        grade=grade,
    )


def open_base(db: Path | None, seed: int) -> Base:
    """The base of a file (ours, or a τ²-bench db.json), or the generated one of a seed."""
    if db is None:
        return generated_base(seed)
    return tau2_base(db) if db.suffix == ".json" else Base.open(db)


def tau2_world(folder: Path) -> World:
    """The world over a τ²-bench retail folder: its data, its tasks, its policy, and tools with the published oddities.

    ServerError where something in the folder is missing or isn't what it should be.
    """
    return with_folder_tasks(retail_world(tau2_base(folder / "db.json"), tau2=True), folder)
