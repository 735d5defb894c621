"""Conversations of an agent with tools in any dialect, by the official Python clients. For tests."""

from __future__ import annotations

import json
from typing import Any

from harness.gateway.client import OpenedRollout
from tests.model_doors import TOOLS, Doors, anthropic_client, client

DIALECTS = ["chat", "responses", "responses in items", "messages"]
RESPONSES_TOOLS: list[Any] = [{"type": "function", **tool["function"], "strict": None} for tool in TOOLS]
MESSAGES_TOOLS: list[Any] = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]

RESPONSE_ENDS = ("response.completed", "response.incomplete")


class Talk:
    """A conversation of an agent with tools, in one dialect, by the official client."""

    def __init__(self, dialect: str, opened: OpenedRollout, *, stream: bool = False, retries: int = 0) -> None:
        self.dialect = dialect
        self.stream = stream
        self.openai = client(opened, retries=retries)
        self.anthropic = anthropic_client(opened, retries=retries)
        self.history: list[Any] = []
        self.previous: str | None = None
        self.answer: Any = None

    async def say(self, text: str) -> str:
        """The user speaks; the answer's text."""
        self.history.append({"role": "user", "content": text})
        return await self._ask()

    async def results(self, *results: str) -> str:
        """The tools' results, in the order of the calls; the answer's text."""
        ids = [call_id for call_id, _, _ in self.calls()]
        if self.dialect == "chat":
            said = [{"role": "tool", "tool_call_id": i, "content": r} for i, r in zip(ids, results, strict=True)]
        elif self.dialect == "messages":
            blocks = [
                {"type": "tool_result", "tool_use_id": i, "content": r} for i, r in zip(ids, results, strict=True)
            ]
            said = [{"role": "user", "content": blocks}]
        else:
            outs = zip(ids, results, strict=True)
            said = [{"type": "function_call_output", "call_id": i, "output": r} for i, r in outs]
        self.history += said
        return await self._ask()

    async def _ask(self) -> str:
        if self.dialect == "chat":
            return await self._chat()
        if self.dialect == "messages":
            return await self._messages()
        return await self._responses()

    async def _chat(self) -> str:
        asked: dict[str, Any] = {"model": "any", "messages": self.history, "tools": TOOLS}
        if self.stream:
            asked["tools"] = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
            async with self.openai.chat.completions.stream(**asked) as events:
                self.answer = (await events.get_final_completion()).choices[0].message
        else:
            self.answer = (await self.openai.chat.completions.create(**asked)).choices[0].message
        calls = [call.model_dump(exclude={"function": {"parsed_arguments"}}) for call in self.answer.tool_calls or ()]
        said = {"role": "assistant", "content": self.answer.content}
        self.history.append({**said, "tool_calls": calls} if calls else said)
        return self.answer.content

    async def _responses(self) -> str:
        chained = self.dialect == "responses"
        asked: dict[str, Any] = {"model": "any", "input": self.history, "tools": RESPONSES_TOOLS, "instructions": "be"}
        if chained:
            asked |= {"previous_response_id": self.previous, "input": self.history[-len(self.calls() or "1") :]}
        if self.stream:
            async with self.openai.responses.stream(**asked) as events:
                # The client's own last response knows no answer that its limit cut short.
                ends = [event.response async for event in events if event.type in RESPONSE_ENDS]
                self.answer = ends[-1]
        else:
            self.answer = await self.openai.responses.create(**asked)
        self.previous = self.answer.id
        self.history += [item.model_dump(exclude_none=True) for item in self.answer.output]
        return self.answer.output_text

    async def _messages(self) -> str:
        asked: dict[str, Any] = {"model": "any", "max_tokens": 500, "messages": self.history, "tools": MESSAGES_TOOLS}
        if self.stream:
            async with self.anthropic.messages.stream(**asked, system="be") as events:
                self.answer = await events.get_final_message()
        else:
            self.answer = await self.anthropic.messages.create(**asked, system="be")
        self.history.append({"role": "assistant", "content": self.answer.content})
        return "".join(block.text for block in self.answer.content if block.type == "text")

    def calls(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Id, name and arguments of the last answer's tool calls."""
        if self.answer is None:
            return []
        if self.dialect == "chat":
            calls = self.answer.tool_calls or ()
            return [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls]
        if self.dialect == "messages":
            return [(block.id, block.name, block.input) for block in self.answer.content if block.type == "tool_use"]
        items = [item for item in self.answer.output if item.type == "function_call"]
        return [(item.call_id, item.name, json.loads(item.arguments)) for item in items]

    def reasoning(self) -> str:
        """What the last answer says of the policy's thoughts."""
        if self.dialect == "chat":
            return str(self.answer.model_dump()["reasoning_content"])
        if self.dialect == "messages":
            return next(block.thinking for block in self.answer.content if block.type == "thinking")
        return next(item.content[0].text for item in self.answer.output if item.type == "reasoning")


def assert_each_turn_reads_the_one_before(doors: Doors, turns: int, rollout_id: str = "r-1") -> None:
    """Each turn's prompt begins with the whole sequence of the turn before, and all its numbers are there."""
    before: list[int] = []
    spans = doors.turns(rollout_id)
    assert len(spans) == turns
    for span in spans:
        assert span.tokens is not None
        prompt = span.tokens.prompt_ids_T.tolist()
        assert prompt[: len(before)] == before
        assert len(span.tokens.logprobs_T) == len(span.tokens.completion_ids_T) > 0
        before = prompt + span.tokens.completion_ids_T.tolist()
