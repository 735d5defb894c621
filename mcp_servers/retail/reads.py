"""The nine retail tools that change nothing. Each takes the session first, then the agent's arguments.

Knows nothing about MCP; results are plain JSON values or text. Listed for callers in tools.py.
"""

from __future__ import annotations

import json

from mcp_servers.arithmetic import work_out
from mcp_servers.retail.records import (
    Email,
    Expression,
    FirstName,
    ItemId,
    LastName,
    OrderId,
    ProductId,
    Summary,
    UserId,
    Zip,
)
from mcp_servers.retail.state import (
    OPTIONAL_ORDER_FIELDS,
    PRODUCTS,
    Retail,
    RetailError,
    product_of_item,
    users_by_email,
    users_by_name,
)
from mcp_servers.state import Base, Entity


def find_user_id_by_email(retail: Retail, email: Email) -> str:
    """The user id, compared without regard to case."""
    user_id = users_by_email(retail.state.base).get(email.lower())
    if user_id is None:
        raise RetailError("User not found")
    return user_id


def find_user_id_by_name_zip(retail: Retail, first_name: FirstName, last_name: LastName, zip: Zip) -> str:
    """The first user of that name (without regard to case) whose default address has that zip code."""
    for user_id in users_by_name(retail.state.base).get((first_name.lower(), last_name.lower()), ()):
        if retail.user(user_id)["address"]["zip"] == zip:
            return user_id
    raise RetailError("User not found")


def get_user_details(retail: Retail, user_id: UserId) -> Entity:
    """The user's name, address, e-mail, payment methods and order ids."""
    return retail.user(user_id)


def get_order_details(retail: Retail, order_id: OrderId) -> Entity:
    """The order with its items, status and payment history."""
    return show_order(retail, retail.order(order_id))


def get_product_details(retail: Retail, product_id: ProductId) -> Entity:
    """The product with all its variants."""
    return retail.product(product_id)


def get_item_details(retail: Retail, item_id: ItemId) -> Entity:
    """One variant: its options, price and whether it is available."""
    product_id = product_of_item(retail.state.base).get(item_id)
    if product_id is None:
        raise RetailError("Item not found")
    return retail.product(product_id)["variants"][item_id]


def list_all_product_types(retail: Retail) -> str:
    """JSON text: product name → product id, sorted by name."""

    def build(base: Base) -> str:
        found = (base.get(PRODUCTS, product_id) for product_id in base.ids(PRODUCTS))
        return json.dumps(dict(sorted((product["name"], product["product_id"]) for product in found if product)))

    return retail.state.base.derived("product_types", build)


def calculate(retail: Retail, expression: Expression) -> str:
    """The value of an arithmetic expression, rounded to two decimals, as text."""
    return work_out(expression)


def transfer_to_human_agents(retail: Retail, summary: Summary) -> str:
    """Hands the conversation over; changes no state."""
    return "Transfer successful"


def show_order(retail: Retail, order: Entity) -> Entity:
    """An order as tools return it: with every optional field when `tau2` is on, else only with those it has."""
    if not retail.tau2:
        return order
    return {**order, **{field: order.get(field) for field in OPTIONAL_ORDER_FIELDS}}
