"""The sixteen retail tools by name, and the one way to call them: check the arguments, run, commit or roll back.

Knows nothing about MCP or HTTP; server.py puts it behind MCP, tasks.py and tests call it in process.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp_servers.retail import reads, writes
from mcp_servers.retail.state import Retail, RetailError

READS: tuple[Callable[..., Any], ...] = (
    reads.find_user_id_by_email,
    reads.find_user_id_by_name_zip,
    reads.get_user_details,
    reads.get_order_details,
    reads.get_product_details,
    reads.get_item_details,
    reads.list_all_product_types,
    reads.calculate,
    reads.transfer_to_human_agents,
)
WRITES: tuple[Callable[..., Any], ...] = (
    writes.cancel_pending_order,
    writes.modify_pending_order_address,
    writes.modify_pending_order_payment,
    writes.modify_pending_order_items,
    writes.exchange_delivered_order_items,
    writes.return_delivered_order_items,
    writes.modify_user_address,
)
TOOLS: dict[str, Callable[..., Any]] = {tool.__name__: tool for tool in (*READS, *WRITES)}
WRITE_NAMES = frozenset(tool.__name__ for tool in WRITES)
_PARAMETERS = {
    name: {
        parameter.name: list if "list" in str(parameter.annotation) else str
        for parameter in list(inspect.signature(tool).parameters.values())[1:]
    }
    for name, tool in TOOLS.items()
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call answers."""

    text: str
    """What the agent reads: bare text, or JSON."""
    is_error: bool = False
    """Whether the call failed; the state is then as before."""


def call_tool(retail: Retail, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Runs one tool on a session. A call that fails changes nothing and answers `Error: …`; nothing is raised for the agent's faults."""
    try:
        tool = _checked(name, arguments)
        value = tool(retail, **arguments)
        retail.state.commit()
    except RetailError as error:
        retail.state.rollback()
        return ToolResult(f"Error: {error}", is_error=True)
    except BaseException:
        retail.state.rollback()
        raise
    return ToolResult(value if isinstance(value, str) else json.dumps(value))


def _checked(name: str, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    if name not in TOOLS:
        raise RetailError(f"Tool '{name}' not found.")
    parameters = _PARAMETERS[name]
    for given, value in arguments.items():
        if given not in parameters:
            raise RetailError(f"{name}() got an unexpected argument '{given}'; it takes {', '.join(parameters)}")
        if not _fits(value, parameters[given]):
            wanted = "a list of strings" if parameters[given] is list else "a string"
            raise RetailError(
                f"{name}() argument '{given}' must be {wanted}, got {json.dumps(value, default=repr)[:80]}"
            )
    missing = [parameter for parameter in parameters if parameter not in arguments]
    if missing:
        raise RetailError(f"{name}() is missing {', '.join(missing)}")
    return TOOLS[name]


def _fits(value: Any, wanted: type) -> bool:
    if wanted is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value))
    return isinstance(value, str)
