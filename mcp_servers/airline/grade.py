"""Judges how an airline episode ended: by its entities and by what had to be said, as mcp_servers/grade.py does.

Used by server.py, and by tests that grade in process.
"""

from __future__ import annotations

from mcp_servers.grade import grade

__all__ = ["grade"]
