"""The sixteen retail tools by name.

Knows nothing about MCP or HTTP; server.py puts them behind MCP, tasks.py, demonstrations.py and tests
call them in process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_servers.retail import reads, writes
from mcp_servers.retail.state import Retail
from mcp_servers.toolbox import Toolbox, ToolFunction, ToolResult

__all__ = ["TOOLBOX", "TOOLS", "ToolResult", "call_tool"]

TOOLBOX = Toolbox(
    reads=(
        reads.find_user_id_by_email,
        reads.find_user_id_by_name_zip,
        reads.get_user_details,
        reads.get_order_details,
        reads.get_product_details,
        reads.get_item_details,
        reads.list_all_product_types,
        reads.calculate,
        reads.transfer_to_human_agents,
    ),
    writes=(
        writes.cancel_pending_order,
        writes.modify_pending_order_address,
        writes.modify_pending_order_payment,
        writes.modify_pending_order_items,
        writes.exchange_delivered_order_items,
        writes.return_delivered_order_items,
        writes.modify_user_address,
    ),
)
TOOLS: Mapping[str, ToolFunction] = TOOLBOX.tools


def call_tool(retail: Retail, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Runs one tool on a session and commits it; a call that fails changes nothing and answers `Error: …`."""
    return TOOLBOX.call(retail, name, arguments)
