"""Reads the retail data of a τ²-bench folder (db.json) as a base of ours.

Knows nothing about sessions or tools. Used by server.py when --db names a JSON file, and by the replay tests.
"""

from __future__ import annotations

from pathlib import Path

from mcp_servers.retail.records import Order, Product, User
from mcp_servers.retail.state import ORDERS, PRODUCTS, USERS
from mcp_servers.state import Base
from mcp_servers.tau2 import read_database

SHAPES = {PRODUCTS: Product, USERS: User, ORDERS: Order}


def tau2_base(file: Path) -> Base:
    """The base in a τ²-bench retail db.json. ServerError where it is missing or something else."""
    return read_database(file, SHAPES)
