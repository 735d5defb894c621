"""The nano tokenizer restores any text, keeps what is copied in one token, and renders histories as prefixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mcp_servers.generator import expert_actions
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.demonstrations import converse, tool_schemas
from mcp_servers.retail.tasks import generate_tasks, policy
from training.nano.episodes import Demonstrations, encode_episodes, render_prefix

WEIGHTS = Path(__file__).resolve().parents[2] / "training" / "nano" / "weights"
TOKENIZER = PreTrainedTokenizerFast.from_pretrained(WEIGHTS)
TOOLS = tool_schemas()


def conversations(count: int) -> list[list[dict[str, Any]]]:
    base = generated_base()
    tasks = generate_tasks("train", 5, 0, count, base=base)
    return [converse(base, task, expert_actions(task), refuses=task["is_refusal"]) for task in tasks]


def ids_of(messages: list[dict[str, Any]], *, prompt: bool = False) -> list[int]:
    text = TOKENIZER.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=prompt)
    return TOKENIZER.encode(str(text), add_special_tokens=False)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_comes_back_from_its_tokens_unchanged(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_tool_results_come_back_from_their_tokens_unchanged() -> None:
    for messages in conversations(40):
        for message in messages:
            ids = TOKENIZER.encode(message["content"], add_special_tokens=False)
            assert TOKENIZER.decode(ids) == message["content"]


@pytest.mark.parametrize("text", ["#A", "907", "42", "7", "credit_card_", "<tool_call>", "</tool_call>", "<|im_end|>"])
def test_pieces_that_are_copied_or_parsed_are_one_token(text: str) -> None:
    assert len(TOKENIZER.encode(text, add_special_tokens=False)) == 1


def test_every_tool_name_is_exactly_one_token() -> None:
    for tool in TOOLS:
        assert len(TOKENIZER.encode(tool["function"]["name"], add_special_tokens=False)) == 1


def test_tool_call_tags_survive_skipping_of_special_tokens() -> None:
    text = '<tool_call>\n{"name": "calculate", "arguments": {}}\n</tool_call>'
    assert TOKENIZER.decode(TOKENIZER.encode(text + "<|im_end|>"), skip_special_tokens=True) == text


def test_a_shorter_history_renders_to_a_prefix_of_a_longer_one() -> None:
    for messages in conversations(20):
        for size in range(1, len(messages)):
            longer = ids_of(messages[: size + 1])
            shorter = ids_of(messages[:size])
            assert longer[: len(shorter)] == shorter
            if messages[size]["role"] == "assistant":
                prompted = ids_of(messages[:size], prompt=True)
                assert longer[: len(prompted)] == prompted


def test_arguments_as_an_object_render_like_arguments_as_text() -> None:
    for messages in conversations(10):
        parsed = json.loads(json.dumps(messages))
        for message in parsed:
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        assert ids_of(parsed) == ids_of(messages)


def test_training_episodes_are_what_the_chat_template_renders() -> None:
    for messages in conversations(20):
        demos = Demonstrations(TOOLS, policy(), [{"kind": "cancel", "careless": False, "messages": messages}])
        episode = encode_episodes(TOKENIZER, demos.records)[0]
        newline = TOKENIZER.encode("\n", add_special_tokens=False)
        assert [*render_prefix(TOKENIZER, demos), *episode.ids_T, *newline] == ids_of(messages)
        written = TOKENIZER.decode(episode.ids_T[episode.mask_T])
        assert written.count("<|im_end|>") == sum(message["role"] == "assistant" for message in messages)


def test_policy_and_sixteen_tools_render_within_four_hundred_tokens() -> None:
    assert len(TOOLS) == 16
    assert len(ids_of([{"role": "system", "content": policy()}])) < 400


def test_the_shipped_weights_stay_within_twelve_megabytes() -> None:
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) <= 12_000_000
