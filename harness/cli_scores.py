"""The commands about scores of stored groups: score, judge calibrate. Each reads its flags and calls who does the work.

Knows nothing about prompts, endpoints or stores. Registered by cli.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from harness.cli_options import JudgeOption, RewardOption, RunArgument, SetOption, config_flags, load_run, out
from harness.config import Config
from harness.errors import ConfigError
from harness.live import Display, show_progress
from harness.scoring.calibrate import calibrate_judge, calibration_text, write_calibration
from harness.scoring.judge import Judge
from harness.scoring.judge_cache import JudgeCache
from harness.scoring.rescore import Rescored, load_check, rescore_groups, stored_groups
from harness.scoring.rubric import load_rubric
from harness.scoring.ruler import preview_group
from harness.scoring.scorer import CACHE_FILE, judge_spec, open_scorer
from harness.show import open_store
from traces.store import Store
from traces.trajectory import Group

RubricOption = Annotated[str | None, typer.Option("--rubric", help="Name, file or text of a rubric.")]
SplitOption = Annotated[str | None, typer.Option("--split", help="Only groups of this split.")]
LimitOption = Annotated[int, typer.Option("--limit", help="At most so many groups; -1 for all.")]


def score(
    run: RunArgument,
    reward: RewardOption = None,
    judge: JudgeOption = None,
    rubric: RubricOption = None,
    check: Annotated[
        Path | None, typer.Option("--check", help="Python file with `check(task, trajectory)` instead of a judge.")
    ] = None,
    split: SplitOption = None,
    limit: LimitOption = -1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost; nothing is sent.")] = False,
    settings: SetOption = None,
) -> None:
    """Score the stored groups of a run again, by another judge, rubric or check, without new rollouts.

    Scores are added with their version; the old ones stay.

        harness score runs/demo --reward ruler --judge openai/gpt-5 --limit 20 --dry-run
    """
    config = load_run(run, settings, {**config_flags(reward=reward, judge=judge), "judge.rubric": rubric})
    if check is None and config.reward.kind == "checks":
        fix = "name a judge: --reward ruler --judge openai/gpt-5; or a check of your own: --check my_check.py"
        raise ConfigError(f"score {run} by checks", "checks need the session, which is gone", fix)
    with open_store(run) as store:
        groups = stored_groups(store, config.run.name, split=split, limit=limit)
        if dry_run:
            out.print(preview_text(config, groups))
            return
        with show_progress(f"harness score · {run}") as display:
            done = asyncio.run(_score(config, store, groups, check, display))
    out.print(f"{done.rollouts} rollouts of {done.groups} groups have new scores")
    for group_id, why in done.unscored.items():
        out.print(f"unscored {group_id}: {why}", markup=False)


async def _score(
    config: Config, store: Store, groups: Iterator[Group], check: Path | None, display: Display
) -> Rescored:
    display.update(phase="score", unit="groups")

    def count(group: Group, scored: bool) -> None:
        del group, scored
        display.update(done=display.progress.done + 1)

    if check is not None:
        return await rescore_groups(store, groups, load_check(check, store), count)
    async with open_scorer(config.reward, config.judge, store, seed=config.run.seed) as scorer:
        assert scorer is not None, "the reward `checks` was refused above"
        return await rescore_groups(store, groups, scorer, count)


def preview_text(config: Config, groups: Iterator[Group]) -> str:
    """How many prompts, tokens and dollars scoring these groups would take, by estimate."""
    spec = judge_spec(config.judge, config.judge.model or "")
    rubric = load_rubric(config.judge.rubric)
    previews = [preview for group in groups for preview in preview_group(group, spec, rubric)]
    tokens = sum(preview.estimated_tokens for preview in previews)
    prices = [preview.estimated_usd for preview in previews]
    known = [price for price in prices if price is not None]
    cost = f"{sum(known):.2f} USD" if known and len(known) == len(prices) else "an unknown price"
    return f"{len(previews)} prompts to {spec.model}, about {tokens:,} prompt tokens, {cost}; nothing was sent"


judge_app = typer.Typer(no_args_is_help=True, help="Measure a judge before trusting it.")


@judge_app.command()
def calibrate(
    run: RunArgument,
    judge: JudgeOption = None,
    rubric: RubricOption = None,
    votes: Annotated[int, typer.Option("--votes", min=1, help="How often each group is judged, in new orders.")] = 3,
    split: SplitOption = None,
    limit: LimitOption = 50,
    settings: SetOption = None,
) -> None:
    """Set a judge's scores of stored groups beside their checks: agreement, position bias, self-consistency, cost.

    Writes `calibration/` in the run's folder; no score is changed.
    """
    config = load_run(run, settings, {**config_flags(judge=judge), "judge.rubric": rubric})
    if config.judge.model is None:
        raise ConfigError(f"calibrate a judge on {run}", "no judge is configured", "name one: --judge openai/gpt-5")
    with open_store(run) as store, JudgeCache(run / CACHE_FILE) as cache:
        asked = Judge(judge_spec(config.judge, config.judge.model), cache)
        groups = stored_groups(store, config.run.name, split=split, limit=limit)
        rules = load_rubric(config.judge.rubric)
        found = asyncio.run(calibrate_judge(groups, asked, rules, votes=votes, seed=config.run.seed))
    path = write_calibration(run / "calibration", found)
    out.print(calibration_text(found), markup=False)
    out.print(f"written to {path}")
