"""`harness traces`: traces come in, go out, become tasks and get smaller, and what can't be read is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, cli_traces
from harness.config import Config, RunSection
from harness.config_source import load_config, write_config
from harness.replay import Replay
from tests.flows.recorded import RUN, close_group, model_span
from traces.cassette import load_cassettes
from traces.store import Store

FIXTURES = Path(__file__).parents[1] / "contracts" / "trace_fixtures"
runner = CliRunner()


def said(*args: str | Path, code: int = 0) -> str:
    result = runner.invoke(cli.app, ["traces", *map(str, args)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def recorded_run(tmp_path: Path) -> Path:
    folder = tmp_path / RUN
    folder.mkdir()
    with Store(folder / "traces.db") as store:
        close_group(store, 1)
        store.append_spans([model_span("g1-r0", [1, 2, 3], [4, 5])])
    return folder


def test_imported_traces_lie_in_a_run_of_their_own_that_can_be_scored(tmp_path: Path) -> None:
    into = tmp_path / "support"
    text = said("import", FIXTURES / "genai.otlp.jsonl", FIXTURES / "openinference.otlp.jsonl", "--into", into)
    assert "2 rollouts from 2 files" in text
    assert "2 without: no_token_ids" in text
    assert load_config(into / "config.toml").run.name == "support"
    with Store(into / "traces.db", create=False) as store:
        (group,) = store.open_groups("support")
        assert len(store.rollouts(group_id=group.group_id, ended=True)) == 2


def test_an_exported_run_comes_back_with_its_tokens_and_scores(tmp_path: Path) -> None:
    run, file = recorded_run(tmp_path), tmp_path / "out.jsonl"
    assert "1 spans written" in said("export", run, file)
    said("import", file, "--into", tmp_path / "again")
    with Store(run / "traces.db") as old, Store(tmp_path / "again" / "traces.db") as new:
        left, right = old.trajectory("g1-r0"), new.trajectory("g1-r0")
    assert left.turns == right.turns
    assert right.turns[0].has_tokens


def test_stored_rollouts_of_one_task_become_one_cassette(tmp_path: Path) -> None:
    into, file = tmp_path / "support", tmp_path / "tasks.jsonl"
    said("import", FIXTURES / "genai.otlp.jsonl", FIXTURES / "openinference.otlp.jsonl", "--into", into)
    assert "1 tasks with 2 recorded calls of 2 rollouts" in said("cassettes", into, file)
    (cassette,) = load_cassettes(file)
    assert (cassette.user_message, cassette.expected) == ("Where is my order #W1?", [])
    said("cassettes", into, file, "--write", "get_order")
    (cassette,) = load_cassettes(file)
    assert [call.name for call in cassette.expected or ()] == ["get_order"]


def test_compacting_a_run_says_what_it_saved(tmp_path: Path) -> None:
    assert "0 turns rewritten" in said("compact", recorded_run(tmp_path))


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("import", "FILE", "--source", "nobody"), "no such source"),
        (("import", "FILE"), "OTLP"),
        (("import", "FILE", "--source", "phoenix"), "is no Phoenix span"),
        (("import", "absent.jsonl"), "absent.jsonl"),
        (("export", "absent", "x.jsonl"), "no such folder"),
    ],
)
def test_what_cannot_be_read_is_told_in_three_parts(tmp_path: Path, args: tuple[str, ...], found: str) -> None:
    (tmp_path / "bad.json").write_text('[{"name": 3}]')
    given = [
        str(tmp_path / "bad.json") if arg == "FILE" else str(tmp_path / arg) if "absent" in arg else arg for arg in args
    ]
    result = runner.invoke(
        cli.app, ["traces", *given, *(("--into", str(tmp_path / "x")) if args[0] == "import" else ())]
    )
    assert result.exit_code == 2
    shown = " ".join((result.output + result.stderr).split())
    assert found in shown
    assert "fix" in shown


@pytest.mark.parametrize(("difference", "code"), [(None, 0), ("turn 1, message 3 (tool): recorded 'a', now 'b'", 1)])
def test_a_replay_that_differs_ends_with_code_one_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, difference: str | None, code: int
) -> None:
    run = recorded_run(tmp_path)
    write_config(Config(run=RunSection(name=RUN, folder=str(tmp_path))), run / "config.toml", "harness train")

    async def replayed(store: Store, rollout_id: str, *_: object) -> Replay:
        return Replay(rollout_id, len(store.trajectory(rollout_id).turns), difference)

    monkeypatch.setattr(cli_traces, "replay_rollout", replayed)
    result = runner.invoke(cli.app, ["replay", str(run), "last", "--agent", "agents/plain/agent.py"])
    assert result.exit_code == code, result.output
    assert f"g1-r0: {difference or '1 model calls as recorded'}" in " ".join(result.output.split())
