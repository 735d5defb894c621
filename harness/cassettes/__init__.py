"""The cassette server: recorded trajectories served as an MCP task world, whose tools answer from the record.

`python -m harness.cassettes FILE` starts like any server of `mcp_servers/`, with the same control API, so that rollouts
and training use it unchanged. The config's `[tools] cassette` starts it.
"""

from __future__ import annotations
