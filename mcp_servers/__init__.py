"""Task servers: worlds that agents work in, each reached over MCP and each started with `python -m mcp_servers.<name>`.

Nothing here knows of rollouts, traces or training, and nothing of those imports this package: servers are started.
"""
