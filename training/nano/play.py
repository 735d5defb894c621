"""Plays retail tasks with the network itself, many at a time, without an engine: a check while building.

It knows nothing about vLLM, agents or gateways; the last word is theirs. Tools run in a process of their own.
Run as `python -m training.nano.play --model training/nano/weights --split validation --count 128`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from training.nano.episodes import COMMAND, demonstrate, render_prefix
from training.nano.export import load_policy
from training.nano.model import Block, LayerCache, Nano

MAX_TURNS = 12
MAX_NEW_TOKENS = 96


@dataclass(slots=True)
class Seat:
    """One task being played."""

    ids: list[int]
    """Tokens after the prefix."""
    texts: list[str] = field(default_factory=list[str])
    """What the assistant wrote, turn by turn, and what the tools answered."""
    ending: str = ""
    """Empty while it goes on; then `answered`, `malformed`, `too_long` or `turn_limit`."""


class Decoder:
    """Keys and values of the prefix, and generation after it."""

    def __init__(self, network: Nano, prefix_P: Tensor) -> None:
        self.network, self.size_p = network, prefix_P.shape[0]
        rope = (network.cos[: self.size_p], network.sin[: self.size_p])
        x = network.model.embed_tokens(prefix_P[None])
        self.prefix: list[LayerCache] = []
        for block in network.blocks:
            q, k, v = block.self_attn.project(block.input_layernorm(x), rope)
            x = x + block.self_attn.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            x = block.feed(x)
            self.prefix.append((k, v))

    def generate(self, rows: Sequence[list[int]], end: int, temperature: float) -> list[list[int]]:
        """New tokens of each row up to and with `end`, at most MAX_NEW_TOKENS."""
        lengths = torch.tensor([len(row) for row in rows])
        longest = int(lengths.max())
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        shape = self.network.config
        room = (len(rows), shape.heads, longest + MAX_NEW_TOKENS, shape.head_dim)
        cache = [(torch.zeros(room), torch.zeros(room)) for _ in self.network.blocks]
        hidden = self._forward(ids, torch.arange(longest).expand(len(rows), -1), cache)
        last = hidden[torch.arange(len(rows)), lengths - 1]
        new: list[list[int]] = [[] for _ in rows]
        running = set(range(len(rows)))
        for step in range(MAX_NEW_TOKENS):
            chosen = _choose(self.network.logits(last), temperature)
            for row in list(running):
                new[row].append(int(chosen[row]))
                if new[row][-1] == end:
                    running.discard(row)
            if not running:
                break
            last = self._forward(chosen[:, None], (lengths + step)[:, None], cache)[:, 0]
        return new

    def _forward(self, ids_BT: Tensor, positions_BT: Tensor, cache: list[LayerCache]) -> Tensor:
        x = self.network.model.embed_tokens(ids_BT)
        places = positions_BT + self.size_p
        rope = (self.network.cos[places][:, None], self.network.sin[places][:, None])
        seen = torch.arange(cache[0][0].shape[2])[None, None, None] <= positions_BT[:, None, :, None]
        seen = torch.cat((torch.ones(*seen.shape[:3], self.size_p, dtype=torch.bool), seen), -1)
        for block, kept, prefix in zip(self.network.blocks, cache, self.prefix, strict=True):
            x = _block_with_cache(block, (x, positions_BT), rope, (kept, prefix, seen))
        return self.network.model.norm(x)


def _block_with_cache(
    block: Block, state: tuple[Tensor, Tensor], rope: LayerCache, memory: tuple[LayerCache, LayerCache, Tensor]
) -> Tensor:
    (x, positions), (kept, prefix, seen) = state, memory
    q, k, v = block.self_attn.project(block.input_layernorm(x), rope)
    where = positions[:, None, :, None].expand_as(k)
    kept[0].scatter_(2, where, k)
    kept[1].scatter_(2, where, v)
    batch = x.shape[0]
    keys = torch.cat((prefix[0].expand(batch, -1, -1, -1), kept[0]), 2)
    values = torch.cat((prefix[1].expand(batch, -1, -1, -1), kept[1]), 2)
    return block.feed(x + block.self_attn.merge(F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)))


class Tools:
    """The tool server's tasks over pipes; use as a context."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([*COMMAND, "--play"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Tools:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)

    def ask(self, **command: object) -> Any:
        """One command and its answer; RuntimeError when the process is gone."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the tools were started without pipes; make a new Tools()")
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the tools ended with code {self.process.poll()} at {command!r}; see their output above"
            )
        return json.loads(line)


@torch.no_grad()
def play_tasks(
    decoder: Decoder,
    tokenizer: PreTrainedTokenizerFast,
    tools: Tools,
    tasks: Sequence[dict[str, Any]],
    temperature: float,
) -> list[Seat]:
    """Plays tasks just opened, all at once; the seats' order is the tasks'."""
    end = int(tokenizer.convert_tokens_to_ids("<|im_end|>"))  # pyright: ignore[reportArgumentType]
    seats = [Seat(_opening(tokenizer, task["user_message"])) for task in tasks]
    for _ in range(MAX_TURNS):
        open_seats = [number for number, seat in enumerate(seats) if not seat.ending]
        if not open_seats:
            break
        written = decoder.generate([seats[number].ids for number in open_seats], end, temperature)
        for number, ids in zip(open_seats, written, strict=True):
            _take_turn(tokenizer, tools, (number, seats[number]), ids, ids[-1] == end)
    for seat in seats:
        seat.ending = seat.ending or "turn_limit"
    return seats


def _take_turn(
    tokenizer: PreTrainedTokenizerFast, tools: Tools, place: tuple[int, Seat], ids: list[int], ended: bool
) -> None:
    number, seat = place
    seat.ids += ids
    text = str(tokenizer.decode(ids))
    seat.texts.append(text)
    if not ended:
        seat.ending = "too_long"
        return
    if "<tool_call>" not in text:
        seat.ending = "answered"
        return
    try:
        call = json.loads(text.split("<tool_call>", 1)[1].split("</tool_call>", 1)[0])
        answer = tools.ask(do="call", seat=number, name=call["name"], arguments=call["arguments"])
    except (json.JSONDecodeError, KeyError, TypeError):
        seat.ending = "malformed"
        return
    seat.texts.append(answer)
    tail = f"\n<|im_start|>tool\n{answer}<|im_end|>\n<|im_start|>assistant\n"
    seat.ids += tokenizer.encode(tail, add_special_tokens=False)


def _opening(tokenizer: PreTrainedTokenizerFast, message: str) -> list[int]:
    return tokenizer.encode(f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)


def _choose(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]


def play_split(folder: Path, split: str, count: int, seed: int, temperature: float) -> list[dict[str, Any]]:
    """One record a task: `kind`, `difficulty`, `refusal`, `passed`, `ending`, `texts`, `user`."""
    network, tokenizer = load_policy(folder)
    header = demonstrate(split, 1, seed)
    torch.manual_seed(seed)
    with torch.no_grad(), Tools() as tools:
        decoder = Decoder(network, torch.from_numpy(render_prefix(tokenizer, header)))
        records: list[dict[str, Any]] = []
        for offset in range(0, count, 64):
            size = min(64, count - offset)
            tasks = tools.ask(do="open", split=split, seed=seed, offset=offset, count=size)
            for number, (task, seat) in enumerate(
                zip(tasks, play_tasks(decoder, tokenizer, tools, tasks, temperature), strict=True)
            ):
                passed = seat.ending == "answered" and tools.ask(do="grade", seat=number)
                about = {"kind": task["kind"], "difficulty": task["difficulty"], "refusal": task["metadata"]["refusal"]}
                records.append(
                    {
                        **about,
                        "passed": passed,
                        "ending": seat.ending,
                        "texts": seat.texts,
                        "user": task["user_message"],
                    }
                )
    return records


def summary(records: Sequence[dict[str, Any]], by: str = "kind") -> dict[str, str]:
    """Share passed and count: all, then by a field; and the endings."""
    groups: dict[str, list[bool]] = {}
    for record in records:
        groups.setdefault(str(record[by]), []).append(bool(record["passed"]))
    shares = {name: f"{sum(passed) / len(passed):.2f} ({len(passed)})" for name, passed in sorted(groups.items())}
    total = sum(bool(record["passed"]) for record in records) / max(1, len(records))
    return {
        "all": f"{total:.3f} ({len(records)})",
        **shares,
        "endings": str(dict(Counter(r["ending"] for r in records))),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "weights", help="exported folder")
    parser.add_argument("--split", default="validation", help="whose tasks")
    parser.add_argument("--count", type=int, default=128, help="how many tasks")
    parser.add_argument("--seed", type=int, default=0, help="of the tasks and of sampling")
    parser.add_argument("--save", type=Path, help="write the last records here as JSON lines")
    given = parser.parse_args()
    for temperature in (0.0, 1.0):
        records = play_split(given.model, given.split, given.count, given.seed, temperature)
        for field_name in ("kind", "difficulty", "refusal"):
            print(f"T={temperature} {json.dumps(summary(records, field_name))}", flush=True)
    if given.save:
        given.save.write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
