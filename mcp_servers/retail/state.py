"""The retail world over the state kit: what a session holds, how entities are found, and the error an agent reads.

Knows nothing about MCP, HTTP, tasks or grading. Used by reads.py and writes.py (the tools), tasks.py and server.py.
"""

from __future__ import annotations

from mcp_servers.errors import ToolFault
from mcp_servers.state import Base, Entity, State

USERS, ORDERS, PRODUCTS = "users", "orders", "products"
OPTIONAL_ORDER_FIELDS = (
    "cancel_reason",
    "exchange_items",
    "exchange_new_items",
    "exchange_payment_method_id",
    "exchange_price_difference",
    "return_items",
    "return_payment_method_id",
)


class RetailError(ToolFault):
    """A retail tool can't do what was asked."""


class Retail:
    """One session of the retail world: its state, and whether tools keep the published oddities (`tau2`)."""

    __slots__ = ("state", "tau2")

    def __init__(self, state: State, tau2: bool = False) -> None:
        self.state = state
        self.tau2 = tau2

    def user(self, user_id: str) -> Entity:
        """The user; RetailError where there is none."""
        return self._found(USERS, user_id, "User not found")

    def order(self, order_id: str) -> Entity:
        """The order; RetailError where there is none."""
        return self._found(ORDERS, order_id, "Order not found")

    def product(self, product_id: str) -> Entity:
        """The product with its variants; RetailError where there is none."""
        return self._found(PRODUCTS, product_id, "Product not found")

    def _found(self, kind: str, entity_id: str, complaint: str) -> Entity:
        entity = self.state.get(kind, entity_id)
        if entity is None:
            raise RetailError(complaint)
        return entity


def open_retail(base: Base, tau2: bool = False) -> Retail:
    """A fresh session over a base."""
    return Retail(State(base), tau2)


def users_by_email(base: Base) -> dict[str, str]:
    """E-mail in lower case → user id. No tool changes an e-mail, so the base alone is enough."""

    def build(base: Base) -> dict[str, str]:
        index: dict[str, str] = {}
        for user_id in base.ids(USERS):
            index.setdefault(_entity(base, USERS, user_id)["email"].lower(), user_id)
        return index

    return base.derived("users_by_email", build)


def users_by_name(base: Base) -> dict[tuple[str, str], list[str]]:
    """(First name, last name), both in lower case → user ids in base order. Zip codes can change: not in it."""

    def build(base: Base) -> dict[tuple[str, str], list[str]]:
        index: dict[tuple[str, str], list[str]] = {}
        for user_id in base.ids(USERS):
            name = _entity(base, USERS, user_id)["name"]
            index.setdefault((name["first_name"].lower(), name["last_name"].lower()), []).append(user_id)
        return index

    return base.derived("users_by_name", build)


def product_of_item(base: Base) -> dict[str, str]:
    """Item id → product id. No tool changes a product."""

    def build(base: Base) -> dict[str, str]:
        return {
            item_id: product_id
            for product_id in base.ids(PRODUCTS)
            for item_id in _entity(base, PRODUCTS, product_id)["variants"]
        }

    return base.derived("product_of_item", build)


def _entity(base: Base, kind: str, entity_id: str) -> Entity:
    entity = base.get(kind, entity_id)
    if entity is None:
        raise KeyError(f"the base lists {kind} {entity_id!r} but does not hold it")
    return entity
