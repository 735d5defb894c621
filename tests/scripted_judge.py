"""A judge that answers by script, behind a real OpenAI-compatible HTTP endpoint, and groups for it to judge.

Each trajectory's last words hold its worth ("worth 0.70"), so the honest answer is known; a script may answer
otherwise.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from harness.scoring.litellm_call import JudgeSpec
from traces.trajectory import Ending, Group, Score, ToolCall, Trajectory, Turn

BLOCK = re.compile(r'<trajectory id="(?P<label>[^"]+)">\n(?P<body>.*?)\n</trajectory>', re.DOTALL)
WORTH = re.compile(r"worth (\d\.\d+)")


@dataclass
class Call:
    """One request as the script sees it."""

    number: int
    """From 0, in order of arrival."""
    body: dict[str, Any]
    """The request's JSON."""
    worths: dict[str, float]
    """Label → worth, in order of presentation."""


Script = Callable[[Call], Awaitable[Response] | Response | str]


@dataclass
class ScriptedJudge:
    """A running endpoint."""

    url: str
    """Base URL with /v1."""
    calls: list[Call] = field(default_factory=list)
    """Requests so far."""

    def spec(self, **changes: Any) -> JudgeSpec:
        """A spec that asks this endpoint and is impatient."""
        settings: dict[str, Any] = {"timeout_s": 60.0, "attempts": 3, "backoff_s": 0.01, **changes}
        return JudgeSpec(model="openai/scripted", api_base=self.url, api_key="k", **settings)


def honest(call: Call) -> str:
    """The right answer."""
    return answer(call.worths)


def answer(worths: dict[str, Any]) -> str:
    """An answer in the format asked for."""
    rows = [{"id": label, "explanation": "seen", "score": worth} for label, worth in worths.items()]
    return json.dumps({"scores": rows})


def completion(text: str | None, finish_reason: str = "stop", **message: Any) -> JSONResponse:
    """A chat completion with this content."""
    return JSONResponse(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish_reason,
                    "message": {"role": "assistant", "content": text, **message},
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }
    )


def failure(status: int, text: str = "scripted failure", **headers: str) -> JSONResponse:
    """An error in OpenAI's shape."""
    error = {"message": text, "type": "error", "code": str(status), "param": None}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def worths_of(body: dict[str, Any]) -> dict[str, float]:
    """Label → worth of the trajectories in a request; the user message that holds them is the first."""
    text = next(message["content"] for message in body["messages"] if message["role"] == "user")
    found: dict[str, float] = {}
    for block in BLOCK.finditer(text):
        worth = WORTH.findall(block["body"])
        found[block["label"]] = float(worth[-1]) if worth else 0.0
    return found


@asynccontextmanager
async def scripted_judge(script: Script) -> AsyncIterator[ScriptedJudge]:
    """Serve `script` on a free port of the loopback for as long as the block lasts."""
    listener = socket.create_server(("127.0.0.1", 0))
    judge = ScriptedJudge(url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    async def complete(request: Request) -> Response:
        body = await request.json()
        call = Call(len(judge.calls), body, worths_of(body))
        judge.calls.append(call)
        result = script(call)
        if isinstance(result, Awaitable):
            result = await result
        return completion(result) if isinstance(result, str) else result

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        # The socket listens already: what comes before the server is up waits in the backlog.
        yield judge
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, timeout=20)


def a_turn(index: int, messages: list[dict[str, Any]], output: dict[str, Any]) -> Turn:
    """One model call."""
    return Turn(
        index=index,
        prompt_ids_T=np.zeros(0, np.int32),
        completion_ids_T=np.zeros(0, np.int32),
        logprobs_T=np.zeros(0, np.float32),
        policy_version=0,
        model="base",
        finish_reason="stop",
        input_messages=messages,
        tools=[TOOL],
        output_message=output,
        span_id=f"s{index}",
        start_ns=index,
        end_ns=index + 1,
    )


TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "Read an order.\nMore words.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    },
}


def a_trajectory(
    number: int,
    words: str,
    *,
    ending: Ending = Ending.ANSWERED,
    result: str = '{"status": "pending"}',
    system: str = "Help.",
) -> Trajectory:
    """System, user, one tool call and its result, and these last words."""
    start = [{"role": "system", "content": system}, {"role": "user", "content": "Cancel order 7."}]
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call{number}",
                "type": "function",
                "function": {"name": "get_order", "arguments": '{"order_id": "7"}'},
            }
        ],
    }
    answered = [*start, called, {"role": "tool", "tool_call_id": f"call{number}", "content": result}]
    return Trajectory(
        rollout_id=f"r{number}",
        group_id="g",
        run_id="run",
        task_id="t",
        kind="cancel",
        split="train",
        policy_version=0,
        turns=[a_turn(0, start, called), a_turn(1, answered, {"role": "assistant", "content": words})],
        tool_calls=[
            ToolCall(
                call_id=f"call{number}",
                name="get_order",
                arguments='{"order_id": "7"}',
                result=result,
                is_error=False,
                span_id=f"t{number}",
                turn_index=0,
                start_ns=0,
                end_ns=1,
            )
        ],
        ending=ending,
        answer=words,
        scores=[Score(value=0.0, name="checks", components={"passed": 0.0})],
        metrics={"tokens": 9.0},
    )


def a_group(worths: Sequence[float], **changes: Any) -> Group:
    """One trajectory for each worth."""
    return group_of(
        [a_trajectory(number, f"done, worth {worth:.2f}", **changes) for number, worth in enumerate(worths)]
    )


def group_of(trajectories: Sequence[Trajectory]) -> Group:
    """A group of these trajectories."""
    return Group(group_id="g", run_id="run", task_id="t", kind="cancel", split="train", trajectories=list(trajectories))


def ruler_scores(group: Group) -> list[float | None]:
    """The RULER score of each trajectory; None where there is none."""
    found = [trajectory.score("ruler") for trajectory in group.trajectories]
    return [None if score is None else score.value for score in found]
