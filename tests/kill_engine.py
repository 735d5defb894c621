"""The scripted engine in a process of its own, to be killed: answers as the task's expert would. For tests.

Prints one line of JSON with its address once it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket

import uvicorn

from tests.retail_expert import cancel_expert
from tests.scripted_engine import ScriptedEngine


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    listener = socket.create_server(("127.0.0.1", parser.parse_args().port))
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
    app = ScriptedEngine(cancel_expert).app()
    await uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
