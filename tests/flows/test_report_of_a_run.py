"""A run folder as the loop leaves it becomes report.md, reward.png, a terminal table and a table over seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import wandb
from rich.console import Console

from harness.config import WandbSection
from harness.errors import HarnessError
from harness.evaluate import save_evaluation
from harness.outcomes import Evaluation, EvaluationSpec, Outcome
from harness.plots import smoothed
from harness.report import summary_numbers, terminal_tables, write_report
from harness.results_table import END_MARK, START_MARK, write_results
from harness.run_facts import read_run, record_phase
from harness.tracking import publish_summary
from traces.records import RolloutRecord
from traces.store import Store
from traces.trajectory import Ending

PNG_MAGIC = b"\x89PNG"


def outcome(number: int, *, passed: bool | None) -> Outcome:
    return Outcome(
        task_id=f"t{number}",
        kind="cancel" if number % 2 else "refuse",
        difficulty="1",
        is_refusal=number % 2 == 0,
        ending="answered" if passed is not None else "engine_error",
        is_infrastructure=passed is None,
        passed=passed,
        reward=None if passed is None else float(passed),
        turns=3,
        tool_calls=2,
        tool_errors=0,
        completion_tokens=40,
        latency_s=1.5,
    )


def evaluation(label: str, temperature: float, successes: int, *, seed: int, version: int = 0) -> Evaluation:
    spec = EvaluationSpec(
        label=label,
        model=f"policy-v{version}",
        policy_version=version,
        split="held_out",
        temperature=temperature,
        seed=seed,
    )
    counted = [outcome(number, passed=number < successes) for number in range(100)]
    return Evaluation(spec, (*counted, outcome(100, passed=None)))


def make_run(folder: Path, seed: int, after: int = 70) -> Path:
    folder.mkdir(parents=True)
    for temperature in (0.0, 1.0):
        save_evaluation(folder, evaluation("before", temperature, 30, seed=seed))
        save_evaluation(folder, evaluation("after", temperature, after, seed=seed, version=9))
    save_evaluation(folder, evaluation("do-nothing", 0.0, 10, seed=seed))
    rows = [
        {"step": step, "reward": 0.3 + 0.04 * step, "ratio": 1.0 + 1e-5 * step, "kl": 1e-6} for step in range(1, 11)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    record_phase(folder, "train", 120.0)
    record_phase(folder, "evaluate", 30.0)
    record_phase(folder, "train", 60.0)
    with Store(folder / "traces.db") as store:
        for number, ending in enumerate([Ending.ANSWERED, Ending.ANSWERED, Ending.TOOL_ERROR]):
            store.append_rollout(
                RolloutRecord(
                    rollout_id=f"r{number}",
                    group_id="g",
                    run_id="run",
                    task_id="t",
                    ending=ending,
                    metrics={"drift_tokens": 2.0 * (number == 0), "forks_template": 1.0, "forks_edited_history": 5.0},
                )
            )
        store.append_rollout(RolloutRecord(rollout_id="open", group_id="g", run_id="run", task_id="t"))
    return folder


def test_report_holds_success_before_and_after_with_intervals_and_the_run(tmp_path: Path) -> None:
    report = write_report(make_run(tmp_path / "demo", seed=1)).read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in report.splitlines() if line.startswith("|")}
    assert rows["**all tasks**"].count("30.0 % [21.9, 39.6]") == 2
    assert rows["**all tasks**"].count("70.0 % [60.4, 78.1]") == 2
    assert "10.0 % [5.5, 17.4]" in rows["**all tasks**"], "the do-nothing column"
    assert "60.0 %" in rows["cancel"] or "70.0 %" in rows["cancel"]
    assert "3" in rows["rollouts ended"], "the open rollout is not counted"
    assert "answered 2, tool_error 1" in rows["endings"]
    assert "train 3.0, evaluate 0.5" in rows["minutes"]
    assert "1.000010" in rows["first-step mean ratio"]
    assert "1.00e-06" in rows["first-step KL"]
    assert "| 2 |" in rows["drift tokens"]
    assert "| 3 |" in rows["false forks"], "a fork that the agent's own editing made is not false"
    assert (tmp_path / "demo" / "reward.png").read_bytes().startswith(PNG_MAGIC)


def test_report_in_html_needs_no_other_file_and_shows_the_same_numbers(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "demo", seed=1)
    judged = {"ruler/calls": 2.0, "ruler/unscored": 0.0, "ruler/prompt_tokens": 900.0, "ruler/cost_usd": 0.25}
    (folder / "judge.jsonl").write_text(f"{json.dumps(judged)}\n" * 2, encoding="utf-8")
    markdown = write_report(folder).read_text(encoding="utf-8")
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "30.0 % [21.9, 39.6]" in text
    assert text.count('src="data:image/png;base64,') == 2, "the curve and the endings; one trial has no pass^2"
    assert "2 groups, 0 unscored, 4 calls" in text
    assert "0.5000 USD" in markdown


def test_numbers_for_dashboards_are_those_of_the_report(tmp_path: Path) -> None:
    numbers = summary_numbers(read_run(make_run(tmp_path / "demo", seed=1)))
    assert numbers["held_out/after/T0/success"] == 0.7
    assert numbers["held_out/after/T0/success/low"] == pytest.approx(0.604, abs=1e-3)
    assert numbers["held_out/before/T1/kind/cancel"] == 0.3
    assert numbers["held_out/before/T1/infrastructure"] == 1.0
    assert numbers["held_out/before/T1/difficulty/1"] == numbers["held_out/before/T1/pass@1"] == 0.3
    assert numbers["held_out/before/T1/write_tasks"] == numbers["held_out/before/T1/refusal_tasks"] == 0.3
    assert numbers["held_out/before/T1/ending/engine_error"] == 1.0
    assert numbers["held_out/before/T1/turns"] == 3.0


def test_the_reports_numbers_are_in_the_summary_of_the_runs_wandb_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "demo", seed=1)
    numbers = summary_numbers(read_run(folder))
    publish_summary(folder, "demo", WandbSection(mode="offline"), numbers)
    wandb.teardown()  # its writer is a process of its own; everything is in the file once that has ended
    (written,) = (folder / "wandb").glob("offline-run-*-demo/run-demo.wandb")
    stored = written.read_bytes()
    missing = [name for name, value in numbers.items() if summary_item(name, value) not in stored]
    assert numbers
    assert not missing


def summary_item(name: str, value: float) -> bytes:
    """A number as the run's file holds it: protobuf's SummaryItem, key and JSON value."""
    text = json.dumps(value).encode()
    return name.encode() + b"\x82\x01" + bytes([len(text)]) + text


def test_numbers_go_nowhere_where_wandb_is_disabled(tmp_path: Path) -> None:
    publish_summary(tmp_path, "demo", WandbSection(mode="disabled"), {"one": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_any_other_evaluation_is_compared_with_the_first_of_its_split_and_temperature(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "demo", seed=1)
    save_evaluation(folder, evaluation("hosted", 1.0, 90, seed=1))
    text = write_report(folder).read_text(encoding="utf-8")
    assert "- hosted (policy-v0 v0) against before, T=1: +60.0 [" in text
    assert "points over 100 tasks of held_out, 60 better, 0 worse, p = " in text


def test_terminal_table_shows_the_same_numbers_as_the_report(tmp_path: Path) -> None:
    console = Console(width=240, record=True, file=(tmp_path / "out.txt").open("w", encoding="utf-8"))
    console.print(*terminal_tables(make_run(tmp_path / "demo", seed=1)))
    text = console.export_text()
    assert "30.0 % [21.9, 39.6]" in text
    assert "false forks" in text


def test_report_of_an_unfinished_run_shows_dashes_and_not_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "young"
    folder.mkdir()
    save_evaluation(folder, evaluation("before", 0.0, 30, seed=0))
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew', encoding="utf-8")
    report = write_report(folder).read_text(encoding="utf-8")
    line = next(line for line in report.splitlines() if "**all tasks**" in line)
    assert [cell.strip() for cell in line.split("|")[2:-1]] == ["30.0 % [21.9, 39.6]", "–", "–", "–", "–"]
    assert read_run(folder).rewards == ((1, 0.5),), "a line cut short by a kill is left out"


def test_report_of_a_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no such folder"):
        write_report(tmp_path / "absent")


def test_a_broken_line_in_the_middle_of_the_metrics_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "demo", seed=1)
    (folder / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 2}\n', encoding="utf-8")
    with pytest.raises(HarnessError, match="line 2 of"):
        write_report(folder)


def test_results_table_pools_seeds_and_replaces_only_what_is_between_the_markers(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed{seed}", seed, after) for seed, after in [(1, 60), (2, 70), (3, 80)]]
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{START_MARK}\nold\n{END_MARK}\n\nfoot\n", encoding="utf-8")
    write_results(readme, runs)
    write_results(readme, runs)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"# Title\n\n{START_MARK}\n")
    assert text.endswith(f"{END_MARK}\n\nfoot\n")
    assert "old" not in text
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "70.0 %" in rows["**all tasks**"], "the mean over three seeds"
    assert "80.0 % [71.1, 86.7]" in rows["run seed3, seed 3"]
    assert "Gain, greedy: +40.0" in text
    assert "3 runs, 100 held-out tasks" in text
    assert "9" in rows["rollouts ended"]


def test_results_table_without_markers_or_runs_is_refused(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no marks", encoding="utf-8")
    with pytest.raises(HarnessError, match="results:start"):
        write_results(readme, [make_run(tmp_path / "a", 1)])
    readme.write_text(f"{START_MARK}\n{END_MARK}\n", encoding="utf-8")
    with pytest.raises(HarnessError, match="no run folders"):
        write_results(readme, [])


def test_smoothing_keeps_the_length_and_the_level() -> None:
    assert smoothed([1.0, 1.0, 1.0]) == [1.0, 1.0, 1.0]
    assert smoothed([0.0, 3.0, 0.0], window=3) == [1.5, 1.0, 1.5]
