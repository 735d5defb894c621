"""The generated retail base: users, orders and products of our own, the same for the same seed.

Knows nothing about tasks or MCP. Identifiers are short (a fixed word or letter and three digits) so that very small
models can copy them; the tools take any. Users and orders are divided over the splits, the catalogue is common to all.
"""

from __future__ import annotations

import random
import tomllib
from functools import lru_cache
from itertools import product as combinations
from pathlib import Path
from typing import Any

from mcp_servers.retail.state import ORDERS, PRODUCTS, USERS
from mcp_servers.state import Base, Entity

SPLIT_USERS = {"train": 5200, "validation": 600, "held_out": 600}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CATALOGUE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
STATUSES = ("pending", "delivered", "processed", "cancelled")
STATUS_WEIGHTS = (44, 44, 8, 4)


@lru_cache(maxsize=4)
def generated_base(seed: int = 0) -> Base:
    """The base of a seed: 6,400 users with 2 to 4 orders each, 48 products; `meta["splits"]` has the users by split."""
    rng = random.Random(f"retail-base-{seed}")
    products = _products(rng)
    numbers = {letter: rng.sample(range(100, 1000), 900) for letter in LETTERS}
    users: dict[str, Entity] = {}
    orders: dict[str, Entity] = {}
    emails: set[str] = set()
    splits: dict[str, list[str]] = {split: [] for split in SPLIT_USERS}
    for split, count in SPLIT_USERS.items():
        while len(splits[split]) < count:
            user = _user(rng, emails)
            if user["user_id"] in users:
                continue
            emails.add(user["email"])
            users[user["user_id"]] = user
            splits[split].append(user["user_id"])
            for letter in rng.sample([letter for letter in LETTERS if numbers[letter]], rng.choice((2, 3, 3, 4))):
                order = _order(rng, f"#{letter}{numbers[letter].pop()}", user, products)
                orders[order["order_id"]] = order
                user["orders"].append(order["order_id"])
    return Base({PRODUCTS: products, USERS: users, ORDERS: orders}, {"splits": splits, "seed": seed})


def new_address(rng: random.Random) -> dict[str, str]:
    """A made-up address; every second one has a suite."""
    city, number = rng.choice(list(CATALOGUE["cities"])), rng.randint(100, 999)
    street, ending = rng.choice(CATALOGUE["streets"]), rng.choice(CATALOGUE["street_ends"])
    return {
        "address1": f"{number} {street} {ending}",
        "address2": f"Suite {rng.randint(10, 99)}" if rng.random() < 0.3 else "",
        "city": city,
        "country": "USA",
        "state": CATALOGUE["cities"][city],
        "zip": str(rng.randint(100, 999)),
    }


def _products(rng: random.Random) -> dict[str, Entity]:
    ids = [str(number) for number in rng.sample(range(100, 1000), 900)]
    products: dict[str, Entity] = {}
    for family in CATALOGUE["products"]:
        option_names: list[str] = family["options"]
        for name in family["names"]:
            product_id = ids.pop()
            choices = list(combinations(*(CATALOGUE["options"][option] for option in option_names)))
            chosen = rng.sample(choices, min(len(choices), rng.choice((4, 5, 6))))
            price = rng.randint(20, 600)
            variants: dict[str, Entity] = {}
            for index, values in enumerate(chosen):
                item_id = ids.pop()
                cents = rng.choice((0, 0, 0.5))
                variants[item_id] = {
                    "item_id": item_id,
                    "options": dict(zip(option_names, values, strict=True)),
                    "available": index < 2 or rng.random() < 0.75,
                    "price": price + rng.randint(-15, 40) + cents if cents else price + rng.randint(-15, 40),
                }
            order = rng.sample(list(variants), len(variants))
            products[product_id] = {
                "name": name,
                "product_id": product_id,
                "variants": {item_id: variants[item_id] for item_id in order},
            }
    return products


def _user(rng: random.Random, emails: set[str]) -> Entity:
    first, last = rng.choice(CATALOGUE["first_names"]), rng.choice(CATALOGUE["last_names"])
    email = ""
    while not email or email in emails:
        email = f"{first}.{last}{rng.randint(100, 999)}@example.com".lower()
    sources = rng.sample(("credit_card", "paypal", "gift_card"), rng.choice((1, 2, 2, 3)))
    methods: dict[str, Entity] = {}
    for source in sources:
        method: Entity = {"source": source, "id": f"{source}_{rng.randint(100, 999)}"}
        if source == "credit_card":
            method |= {"brand": rng.choice(("visa", "mastercard")), "last_four": str(rng.randint(1000, 9999))}
        if source == "gift_card":
            method["balance"] = rng.randint(50, 999)
        methods[method["id"]] = method
    return {
        "user_id": f"{first}_{last}_{rng.randint(100, 999)}".lower(),
        "name": {"first_name": first, "last_name": last},
        "address": new_address(rng),
        "email": email,
        "payment_methods": methods,
        "orders": [],
    }


def _order(rng: random.Random, order_id: str, user: Entity, products: dict[str, Entity]) -> Entity:
    lines: list[Entity] = []
    for product_id in rng.sample(list(products), rng.choice((1, 2, 2, 3))):
        product = products[product_id]
        variant = product["variants"][rng.choice(list(product["variants"]))]
        line = {"name": product["name"], "product_id": product_id, "item_id": variant["item_id"]}
        lines.append({**line, "price": variant["price"], "options": dict(variant["options"])})
    total = sum(line["price"] for line in lines)
    total = int(total) if total == int(total) else total
    method_id = rng.choice(list(user["payment_methods"]))
    status = rng.choices(STATUSES, STATUS_WEIGHTS)[0]
    history = [{"transaction_type": "payment", "amount": total, "payment_method_id": method_id}]
    if status == "cancelled":
        history.append({"transaction_type": "refund", "amount": total, "payment_method_id": method_id})
    order: Entity = {
        "order_id": order_id,
        "user_id": user["user_id"],
        "status": status,
        "address": dict(user["address"]),
    }
    if status == "cancelled":
        order["cancel_reason"] = rng.choice(("no longer needed", "ordered by mistake"))
    return {**order, "items": lines, "payment_history": history}
