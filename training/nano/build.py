"""The command that makes the shipped policy: demonstrations, tokenizer, careful, then a little careless training.

It knows nothing about reinforcement learning; what it leaves is imperfect on purpose: there is something to learn.
Run as `python -m training.nano.build --out training/nano/weights`; README.md beside it says what came out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from training.nano.episodes import Demonstrations, Episode, demonstrate, encode_episodes, plain_texts, render_prefix
from training.nano.export import export_policy, load_policy
from training.nano.induction import write_induction
from training.nano.model import Nano, NanoConfig
from training.nano.sft import Ids, SftConfig, parameter_count, teacher_forced, train_sft
from training.nano.tokenizer import build_tokenizer, read_template

VOCABULARY = 2688
KINDS = "cancel,return,exchange,modify_items,order_address,payment,refuse,refuse"
"""Request kinds of the careful phase; refusals have seven reasons and count twice."""
LEVELS = "1,1,1,1,1,1,2,2,2,3"
"""Difficulties of the careful phase."""


def build_careful(start: Path | None, out: Path, config: SftConfig, count: int) -> None:
    """Experts' conversations: the ceiling, not what ships. Tokenizer and network from nothing, or those of `start`."""
    torch.manual_seed(config.seed)
    shown = demonstrate("train", count, config.seed, bases=7, kinds=KINDS, levels=LEVELS)
    if start is None:
        names = [tool["function"]["name"] for tool in shown.tools]
        texts = plain_texts(shown, shown.records[:: max(1, len(shown.records) // 4000)])
        tokenizer = build_tokenizer(texts, names, VOCABULARY, read_template())
        network = Nano(NanoConfig(len(tokenizer)))
        write_induction(network)
    else:
        network, tokenizer = load_policy(start)
    prefix_P, episodes = render_prefix(tokenizer, shown), encode_episodes(tokenizer, shown.records)
    _say(parameters=parameter_count(network), vocabulary=len(tokenizer), prefix=len(prefix_P), episodes=len(episodes))
    held = encode_episodes(tokenizer, demonstrate("validation", 210, config.seed).records)

    def save() -> None:
        export_policy(network, tokenizer, out)

    train_sft(network, episodes, prefix_P, config, _reporter(network, (prefix_P, held), save))
    _finish(network, (prefix_P, held), save)


def build_careless(start: Path, out: Path, config: SftConfig, sloppy: float, count: int) -> None:
    """The shipped start: a careful network, shown for a short time how careless agents go wrong."""
    torch.manual_seed(config.seed)
    network, tokenizer = load_policy(start)
    shown: Demonstrations = demonstrate("train", count, config.seed + 1000, sloppy=sloppy, kinds=KINDS, levels=LEVELS)
    prefix_P, episodes = render_prefix(tokenizer, shown), encode_episodes(tokenizer, shown.records)
    held = encode_episodes(tokenizer, demonstrate("validation", 210, config.seed).records)

    def save() -> None:
        export_policy(network, tokenizer, out)

    train_sft(network, episodes, prefix_P, config, _reporter(network, (prefix_P, held), save, parts=1))
    _finish(network, (prefix_P, held), save)


def _reporter(
    network: Nano, held: tuple[Ids, list[Episode]], save: Callable[[], None], parts: int = 8
) -> Callable[[float, int, float], None]:
    """Prints the loss now and then, and between the `parts` of a phase saves and measures."""
    started, marks = time.monotonic(), [mark / parts for mark in range(1, parts)]
    losses: list[float] = []

    def report(done: float, step: int, loss: float) -> None:
        losses.append(loss)
        if step % 25 == 0:
            _say(done=done, step=step, loss=sum(losses[-25:]) / 25, minutes=(time.monotonic() - started) / 60)
        if marks and done >= marks[0]:
            marks.pop(0)
            save()
            if done > 0.3:
                _measure(network, (held[0], held[1][:105]))

    return report


def _finish(network: Nano, held: tuple[Ids, list[Episode]], save: Callable[[], None]) -> None:
    save()
    _measure(network, held)


def _measure(network: Nano, held: tuple[Ids, list[Episode]]) -> None:
    results = teacher_forced(network, held[1], held[0])
    _say(**{kind: f"{greedy:.2f}/{sampled:.2f}" for kind, (greedy, sampled) in sorted(results.items())})


def _say(**values: object) -> None:
    print(
        json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}),
        flush=True,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "weights", help="folder of the shipped policy"
    )
    parser.add_argument(
        "--careful", type=Path, default=Path("careful"), help="folder of the policy before careless training"
    )
    parser.add_argument("--start", type=Path, help="folder of a policy that careful training goes on from")
    parser.add_argument("--minutes", type=float, default=40.0, help="careful training; 0 takes what is in --careful")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate of careful training")
    parser.add_argument("--careless-minutes", type=float, default=3.0, help="careless training; 0 leaves it out")
    parser.add_argument("--careless-rate", type=float, default=6e-4, help="learning rate of careless training")
    parser.add_argument(
        "--sloppy", type=float, default=0.85, help="share of careless conversations in careless training"
    )
    parser.add_argument("--count", type=int, default=36000, help="conversations for careful training")
    parser.add_argument("--seed", type=int, default=0, help="of tasks, weights and order")
    parser.add_argument("--threads", type=int, default=2, help="cores to use")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.minutes > 0:
        config = SftConfig(given.minutes, learning_rate=given.rate, short_prefix=0.75, all_tokens=0.3, seed=given.seed)
        if given.start is not None:
            config = replace(config, short_prefix=0.5, all_tokens=0.1)
        build_careful(given.start, given.careful, config, given.count)
    if given.careless_minutes > 0:
        config = replace(
            SftConfig(given.careless_minutes, whole=1.0, hold=0.2, seed=given.seed), learning_rate=given.careless_rate
        )
        build_careless(given.careful, given.out, config, given.sloppy, max(1000, int(6000 * given.careless_minutes)))


if __name__ == "__main__":
    main()
