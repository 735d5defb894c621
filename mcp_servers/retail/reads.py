"""The nine retail tools that change nothing. Each takes the session first, then the agent's arguments.

Knows nothing about MCP; results are plain JSON values or text. Listed for callers in tools.py.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from typing import Any

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

ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
MAX_EXPRESSION_CHARS = 400
MAX_EXPONENT = 64


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
    if not all(char in "0123456789+-*/(). " for char in expression):
        raise RetailError("Invalid characters in expression")
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise RetailError(f"Expression too long: {len(expression)} characters, at most {MAX_EXPRESSION_CHARS}")
    try:
        return str(round(float(_value(ast.parse(expression.strip(), "<string>", "eval").body)), 2))
    except SyntaxError as error:
        raise RetailError(str(error)) from error
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise RetailError(str(error)) from error


def transfer_to_human_agents(retail: Retail, summary: Summary) -> str:
    """Hands the conversation over; changes no state."""
    return "Transfer successful"


def show_order(retail: Retail, order: Entity) -> Entity:
    """An order as tools return it: with every optional field when `tau2` is on, else only with those it has."""
    if not retail.tau2:
        return order
    return {**order, **{field: order.get(field) for field in OPTIONAL_ORDER_FIELDS}}


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if abs(right) > MAX_EXPONENT or abs(left) > 1e6:
                raise ValueError(f"power too large: {left} ** {right}")
            return left**right
        if type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](left, right)
    raise ValueError("invalid syntax")
