"""The fourteen airline tools by name.

Knows nothing about MCP or HTTP; server.py puts them behind MCP, tasks.py and tests call them in process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_servers.airline import bookings, changes, reads
from mcp_servers.airline.state import Airline
from mcp_servers.toolbox import Toolbox, ToolFunction, ToolResult

__all__ = ["TOOLBOX", "TOOLS", "ToolResult", "call_tool"]

TOOLBOX = Toolbox(
    reads=(
        reads.get_user_details,
        reads.get_reservation_details,
        reads.get_flight_status,
        reads.list_all_airports,
        reads.search_direct_flight,
        reads.search_onestop_flight,
        reads.calculate,
        reads.transfer_to_human_agents,
    ),
    writes=(
        bookings.book_reservation,
        bookings.cancel_reservation,
        bookings.send_certificate,
        changes.update_reservation_flights,
        changes.update_reservation_baggages,
        changes.update_reservation_passengers,
    ),
)
TOOLS: Mapping[str, ToolFunction] = TOOLBOX.tools


def call_tool(airline: Airline, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Runs one tool on a session and commits it; a call that fails changes nothing and answers `Error: …`."""
    return TOOLBOX.call(airline, name, arguments)
