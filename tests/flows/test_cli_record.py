"""The commands that only read: show finds and prints rollouts, report and keys write what is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from harness import cli
from traces.build import ModelCall, Outcome, Place, chat_span
from traces.records import RolloutRecord
from traces.span import Tokens, new_trace_id
from traces.store import Store
from traces.trajectory import Ending, Score

runner = CliRunner()


def add_rollout(store: Store, rollout_id: str, value: float, ending: Ending = Ending.ANSWERED) -> None:
    trace_id = new_trace_id()
    started = RolloutRecord(
        rollout_id=rollout_id, group_id="g", run_id="demo", task_id="t-1", kind="cancel", split="train",
        trace_id=trace_id, start_ns=1_000_000_000,
    )  # fmt: skip
    store.append_rollout(started)
    tokens = Tokens(np.array([5, 6], np.int32), np.array([7, 8, 9], np.int32), np.array([-0.5, -0.25, 0], np.float32))
    said = [{"role": "user", "content": f"please {rollout_id}"}]
    answer = {"role": "assistant", "content": "done [not markup]"}
    call = ModelCall(model="base", messages=said, output=answer, finish_reason="stop", tokens=tokens, policy_version=0)
    place = Place(trace_id=trace_id, rollout_id=rollout_id, group_id="g", run_id="demo")
    store.append_spans([chat_span(place, Outcome(start_ns=1_000_000_001, end_ns=1_500_000_000), call)])
    store.append_scores(rollout_id, [Score(value=value, name="checks", explanation="the state is right")])
    fields = {name: getattr(started, name) for name in RolloutRecord.__dataclass_fields__}
    store.append_rollout(RolloutRecord(**{**fields, "ending": ending, "answer": "done", "end_ns": 2_000_000_000}))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    folder.mkdir()
    with Store(folder / "traces.db") as store:
        add_rollout(store, "r-aa1", 0.0)
        add_rollout(store, "r-aa2", 1.0)
        add_rollout(store, "r-b", 0.5, Ending.TURN_LIMIT)
    return folder


def shown(*args: str) -> str:
    result = runner.invoke(cli.app, ["show", *args])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_is_listed_with_endings_and_scores_newest_last(run_dir: Path) -> None:
    text = shown(str(run_dir))
    assert text.index("r-aa1") < text.index("r-aa2") < text.index("r-b")
    assert "3 of 3 rollouts" in text
    limited = shown(str(run_dir), "--limit", "1")
    assert "r-b" in limited
    assert "r-aa1" not in limited
    assert "r-aa" not in shown(str(run_dir), "--ending", "turn_limit")


@pytest.mark.parametrize(
    ("asked", "found"), [("r-aa2", "r-aa2"), ("best", "r-aa2"), ("worst", "r-aa1"), ("last", "r-b")]
)
def test_a_rollout_is_found_by_its_beginning_or_by_its_rank(run_dir: Path, asked: str, found: str) -> None:
    text = shown(str(run_dir), asked)
    assert f"please {found}" in text
    assert "done [not markup]" in text
    assert "2 prompt + 3 sampled tokens" in text
    assert "1 training rows · 3 trained tokens · drift 0" in text


def test_token_ids_stand_beside_their_logprobs_where_asked(run_dir: Path) -> None:
    assert "7:-0.500 8:-0.250 9:0.000" in shown(str(run_dir), "r-b", "--tokens")


@pytest.mark.parametrize(("asked", "says"), [("r-aa", "2 ended rollouts start so"), ("r-zz", "no ended rollout")])
def test_a_rollout_that_is_none_or_many_is_a_clear_error(run_dir: Path, asked: str, says: str) -> None:
    result = runner.invoke(cli.app, ["show", str(run_dir), asked])
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_folder_that_is_no_run_is_a_clear_error(tmp_path: Path, command: str) -> None:
    result = runner.invoke(cli.app, [command, str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "no such folder" in result.stderr


def test_a_file_that_is_no_store_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "traces.db").write_text("not a database, but long enough to be looked at" * 50)
    result = runner.invoke(cli.app, ["show", str(tmp_path)])
    assert result.exit_code == 2
    assert "not a SQLite database" in result.stderr


def test_a_report_is_written_again_from_the_folder_alone(run_dir: Path) -> None:
    result = runner.invoke(cli.app, ["report", str(run_dir)])
    assert result.exit_code == 0, result.output
    assert "rollouts ended" in (run_dir / "report.md").read_text()
    assert (run_dir / "reward.png").stat().st_size > 1000


def test_keys_are_listed_with_defaults_and_meanings() -> None:
    text = runner.invoke(cli.app, ["keys", "training"]).output
    assert "training.steps" in text
    assert "Optimizer steps." in text
    assert "engine.dtype" not in text


def test_spans_that_no_viewer_takes_are_a_clear_error(run_dir: Path) -> None:
    result = runner.invoke(cli.app, ["show", str(run_dir), "--otlp", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "127.0.0.1:9" in result.stderr
