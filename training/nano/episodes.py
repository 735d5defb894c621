"""Demonstrations as token arrays: the common prefix once, then each conversation and what in it the assistant wrote.

It knows nothing about the network. Conversations come from a command of the tool server, so nothing of it is imported.
Called by `training.nano.build`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

COMMAND = (sys.executable, "-m", "mcp_servers.retail.demonstrations")
HEAD = "<|im_start|>assistant\n"
END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What the command printed."""

    tools: list[dict[str, Any]]
    """Tools as a chat request lists them."""
    system: str
    """The system prompt of every conversation."""
    records: list[dict[str, Any]]
    """`id`, `kind`, `difficulty`, `careless`, `messages` of each conversation."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One conversation after the prefix."""

    kind: str
    """Request kind."""
    ids_T: NDArray[np.int64]
    """Tokens from the user message on."""
    mask_T: NDArray[np.bool_]
    """True where the assistant wrote the token; parallel to `ids_T`."""
    decided: int
    """Number of tokens up to the end of the last tool call, or of the refusal: what success depends on."""


def demonstrate(split: str, count: int, seed: int, *, bases: int = 1, **options: str | float) -> Demonstrations:
    """About `count` conversations of a split and seed; half of them in the world that tasks are served from, the
    others in `bases - 1` worlds with other identifiers, so that these are read and not remembered. `options` are more
    of the command's: `sloppy`, `kinds`, `levels`.

    Raises RuntimeError with the command's own words when it fails.
    """
    share = count if bases == 1 else count // 2 // (bases - 1)
    plan = [(0, count if bases == 1 else count // 2), *((base, share) for base in range(1, bases))]
    records: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as pool:
        for out in pool.map(lambda part: _run({"split": split, "seed": seed, **options}, part), plan):
            first, *lines = out.splitlines()
            header = json.loads(first)
            records += [json.loads(line) for line in lines]
    return Demonstrations(header["tools"], header["system"], records)


def render_prefix(tokenizer: PreTrainedTokenizerFast, demos: Demonstrations) -> NDArray[np.int64]:
    """Token ids of system prompt and tools, (P,)."""
    system, tools = [{"role": "system", "content": demos.system}], cast("list[Any]", demos.tools)
    text = str(tokenizer.apply_chat_template(system, tools=tools, tokenize=False))
    return np.array(tokenizer.encode(text, add_special_tokens=False), np.int64)


def encode_episodes(tokenizer: PreTrainedTokenizerFast, records: Sequence[dict[str, Any]]) -> list[Episode]:
    """Conversations as the chat template renders them, without the prefix."""
    pieces = [_pieces(record["messages"][1:]) for record in records]
    backend = tokenizer.backend_tokenizer
    encoded = iter(backend.encode_batch([text for each in pieces for text, _ in each], add_special_tokens=False))
    episodes: list[Episode] = []
    for record, each in zip(records, pieces, strict=True):
        ids: list[int] = []
        mask: list[bool] = []
        ends: list[int] = []
        for _, written in each:
            new = next(encoded).ids
            ids += new
            mask += [written] * len(new)
            if written:
                ends.append(len(ids))
        refuses = record["kind"] == "refuse" and not record["careless"]
        decided = ends[-1] if refuses or len(ends) < 2 else ends[-2]
        episodes.append(Episode(record["kind"], np.array(ids, np.int64), np.array(mask, np.bool_), decided))
    return episodes


def plain_texts(demos: Demonstrations, records: Sequence[dict[str, Any]]) -> list[str]:
    """What a tokenizer is made from: rendered conversations without chat markers, and the prefix."""
    tools = "".join(
        f"\n{tool['function']['name']}({', '.join(tool['function']['parameters']['properties'])})"
        for tool in demos.tools
    )
    texts = [f"system\n{demos.system}{tools}\n"] * 20
    for record in records:
        text = "".join(piece for piece, _ in _pieces(record["messages"][1:]))
        for marker in ("<|im_start|>", END, "<tool_call>", "</tool_call>"):
            text = text.replace(marker, "\n\n")
        texts.append(text)
    return texts


def _run(options: dict[str, str | float], part: tuple[int, int]) -> str:
    base, count = part
    argv = [*COMMAND, *(f"--{name}={value}" for name, value in {**options, "base": base, "count": count}.items())]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(argv[1:])} failed with exit code {done.returncode}: {done.stderr.strip()[-800:]}"
        )
    return done.stdout


def _pieces(messages: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    """(text, whether the assistant writes it) in the template's form; the end token is the assistant's."""
    pieces: list[tuple[str, bool]] = []
    before = ""
    for message in messages:
        if message["role"] != "assistant":
            before += f"<|im_start|>{message['role']}\n{message['content']}{END}\n"
            continue
        functions = [call["function"] for call in message.get("tool_calls", [])]
        calls = "".join(
            f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
            for function in functions
        )
        pieces += [(before + HEAD, False), (f"{message['content']}{calls}{END}", True)]
        before = "\n"
    return pieces
