"""Reads the retail data of a τ²-bench folder (db.json) as a base of ours.

Knows nothing about sessions or tools. Used by server.py when --db names a JSON file, and by the replay tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from mcp_servers.errors import ServerError
from mcp_servers.retail.state import ORDERS, PRODUCTS, USERS
from mcp_servers.state import Base


def tau2_base(path: Path) -> Base:
    """The base in a τ²-bench retail db.json. ServerError where it is missing or something else."""
    asked, fix = f"open the tau2 database {str(path)!r}", "give the db.json of a tau2-bench retail folder"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ServerError(asked, str(error), fix) from error
    if not isinstance(found, dict) or not {PRODUCTS, USERS, ORDERS} <= found.keys():
        keys = sorted(cast("dict[str, Any]", found)) if isinstance(found, dict) else type(found).__name__
        raise ServerError(asked, f"no products, users and orders in it, but {keys}", fix)
    entities = cast("dict[str, Any]", found)
    return Base({kind: entities[kind] for kind in (PRODUCTS, USERS, ORDERS)}, {"source": "tau2"})
