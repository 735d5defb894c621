"""The third door of a rollout whose task has a user: the agent posts what it says, and reads what the user answers.

    POST <user_url> {"message": "…"}  →  {"message": "…", "done": false}

It knows nothing about how an answer comes about (user.py, user_llm.py), or about models, tools and scores. A failing
simulation is kept as the conversation's fault: the rollout then ends for that reason. Opened by stack.py, used by
rollout.py.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from harness.config import UserSection
from harness.errors import SimulatorError
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeSpec, load_litellm
from harness.task import AgentTask, Task
from harness.user import Said, Scenario, ScriptedUser, User, dialog_task, scenario_of
from harness.user_llm import LlmUser

LEAVING = Said("I have to go now.", done=True)
"""What a user says who has heard as many messages as it may."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message of the agent and the user's answer."""

    heard: str
    """What the agent said."""
    said: Said
    """What the user answered."""
    start_ns: int
    """Unix time of the message in nanoseconds."""
    end_ns: int
    """Unix time of the answer in nanoseconds."""


@dataclass(slots=True)
class Conversation:
    """One rollout's talk with its user."""

    url: str
    """Where the agent posts what it says."""
    task: AgentTask
    """What the agent is told: the user's first message, and nothing of what it knows beside."""
    user: User
    """Who answers."""
    longest: int
    """Messages the user hears before it leaves."""
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    """In order."""
    fault: SimulatorError | None = None
    """What failed in the simulation; nothing is answered after that."""
    waits: bool = False
    """True while the user is making an answer; where the rollout ends meanwhile it stays true."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_over(self) -> bool:
        """Whether the user has left."""
        return bool(self.exchanges) and self.exchanges[-1].said.done

    def heard(self) -> str:
        """Everything the agent said, one message a line."""
        return "\n".join(exchange.heard for exchange in self.exchanges)

    def metrics(self) -> dict[str, float]:
        """Messages, whether the user left by itself, and what playing it took."""
        return {"user/messages": len(self.exchanges), "user/left": float(self.is_over), **self.user.metrics()}

    async def answer(self, message: str) -> Said:
        """The user's answer; a user that has left stays silent. Raises SimulatorError, also again for a past fault."""
        async with self._turn:
            if self.fault is not None:
                raise self.fault
            if self.is_over:
                return Said("", done=True)
            start_ns = time.time_ns()
            self.waits = True
            try:
                said = LEAVING if len(self.exchanges) + 1 >= self.longest else await self.user.answer(message)
            except SimulatorError as error:
                self.fault, self.waits = error, False
                raise
            self.waits = False
            self.exchanges.append(Exchange(message, said, start_ns, time.time_ns()))
            return said


class UserDesk:
    """The users of a run, behind one loopback address. Made by `open_user_desk`."""

    def __init__(self, section: UserSection, model: Judge | None) -> None:
        self._section = section
        self._model = model
        self._open: dict[str, Conversation] = {}
        self.url = ""
        """Base address; empty until it serves."""

    @asynccontextmanager
    async def talk(self, task: Task) -> AsyncGenerator[Conversation]:
        """A conversation with the task's user, for as long as the block runs. Raises SimulatorError."""
        scenario = scenario_of(task)
        user = self._user(scenario)
        opening = await user.open()
        key = secrets.token_urlsafe(24)
        conversation = Conversation(
            url=f"{self.url}/u/{key}",
            task=dialog_task(task, scenario, opening),
            user=user,
            longest=self._section.messages,
        )
        self._open[key] = conversation
        try:
            yield conversation
        finally:
            del self._open[key]

    def _user(self, scenario: Scenario) -> User:
        return ScriptedUser(scenario) if self._model is None else LlmUser(scenario, self._model)

    async def serve(self, request: web.Request) -> web.Response:
        """POST /u/<key>: 200 with the answer, 400 without a message, 404 after the rollout, 503 for a fault."""
        conversation = self._open.get(request.match_info["key"])
        if conversation is None:
            return web.json_response({"error": "no rollout of this address is under way"}, status=404)
        try:
            body: Any = json.loads(await request.text())
            message = body["message"]
        except (ValueError, KeyError, TypeError):
            message = None
        if not isinstance(message, str):
            return web.json_response({"error": 'send {"message": "what the agent says"}'}, status=400)
        try:
            said = await conversation.answer(message)
        except SimulatorError as error:
            return web.json_response({"error": str(error)}, status=503)
        return web.json_response({"message": said.text, "done": said.done})


@asynccontextmanager
async def open_user_desk(section: UserSection) -> AsyncGenerator[UserDesk | None]:
    """The users of a configuration for as long as the block runs; None where it has none.

    Raises JudgeError where LiteLLM, which a played user needs, isn't there.
    """
    if section.kind == "none":
        yield None
        return
    model = None
    if section.kind == "llm" and section.model is not None:
        await asyncio.to_thread(load_litellm, section.model)
        model = Judge(
            JudgeSpec(
                model=section.model,
                api_base=section.api_base,
                temperature=section.temperature,
                max_answer_tokens=1024,
                concurrency=section.concurrency,
                timeout_s=section.timeout_s,
                json_schema=False,
            )
        )
    desk = UserDesk(section, model)
    app = web.Application()
    app.router.add_post("/u/{key}", desk.serve)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        desk.url = f"http://{host}:{port}"
        yield desk
    finally:
        await runner.cleanup()
