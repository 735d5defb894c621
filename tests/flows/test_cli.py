"""The command line as a person meets it: help that teaches, short errors with exit code 2, runs that never collide."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from harness import cli, cli_stack
from harness.config import Config
from harness.config_source import load_config, write_config
from harness.errors import ConfigError, EngineError

runner = CliRunner()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Stands in for the training package; what `train` was called with."""
    calls: list[Config] = []

    def train(config: Config) -> int:
        calls.append(config)
        return 0

    monkeypatch.setattr(cli_stack, "load_command", lambda name: train)
    return calls


def run(*args: str) -> Any:
    return runner.invoke(cli.app, args)


def test_help_explains_the_words_and_names_the_first_two_commands() -> None:
    text = run("--help").output
    for word in ("task", "spans", "trajectory", "group", "adapter", "policy", "harness doctor", "examples/demo.toml"):
        assert word in text


def test_every_command_has_help_of_its_own_with_no_error() -> None:
    for name in [command.name or command.callback.__name__ for command in cli.app.registered_commands]:  # type: ignore[union-attr]
        shown = run(name, "--help")
        assert shown.exit_code == 0, name
        assert "Usage" in shown.output


def test_a_dry_run_prints_a_configuration_that_can_be_run(tmp_path: Path) -> None:
    shown = run("train", "--dry-run", "--model", "some/model", "--set", "training.steps=7")
    file = tmp_path / "printed.toml"
    file.write_text(shown.output)
    config = load_config(file)
    assert (config.model.name, config.training.steps, shown.exit_code) == ("some/model", 7, 0)


def test_the_real_model_command_of_the_readme_resolves() -> None:
    line = "--model Qwen/Qwen3-4B-Instruct-2507 --tools retail --agent agents/openai_agents/agent.py --reward ruler"
    shown = run("train", "--dry-run", *line.split(), "--judge", "openai/gpt-5")
    assert shown.exit_code == 0
    assert 'kind = "ruler"' in shown.output
    assert 'model = "openai/gpt-5"' in shown.output


def test_a_misspelt_key_gives_three_parts_and_exit_code_two() -> None:
    shown = run("train", "--set", "training.stepz=3")
    assert shown.exit_code == 2
    assert "asked  training.stepz = 3" in shown.stderr
    assert "found  no such key" in shown.stderr
    assert "did you mean training.steps?" in shown.stderr
    assert "Traceback" not in shown.output


def test_debug_shows_the_error_itself_instead_of_the_message() -> None:
    shown = run("--debug", "train", "--set", "training.stepz=3")
    assert shown.exit_code != 0
    assert type(shown.exception).__name__ == "ConfigError"


def test_a_taken_name_gets_the_next_number_and_nothing_is_overwritten(tmp_path: Path, trained: list[Config]) -> None:
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
    shown = run("train", "--set", f"run.folder={tmp_path}", "--set", "run.name=demo")
    assert [config.run.name for config in trained] == ["demo-3"]
    assert "--resume" in shown.stderr


def test_resume_takes_the_runs_own_configuration_wherever_the_folder_lies(
    tmp_path: Path, trained: list[Config]
) -> None:
    made = load_config(settings=["training.steps=9", "run.name=demo", "run.folder=/somewhere/else"])
    write_config(made, tmp_path / "demo" / "config.toml", "harness train")
    shown = run("train", "--resume", str(tmp_path / "demo"))
    (config,) = trained
    assert shown.exit_code == 0
    assert config.training.steps == 9
    assert Path(config.run.folder) / config.run.name == tmp_path / "demo"


def test_a_renamed_run_is_refused_since_its_records_carry_its_name(tmp_path: Path) -> None:
    write_config(load_config(settings=["run.name=demo"]), tmp_path / "other" / "config.toml", "harness train")
    shown = run("train", "--resume", str(tmp_path / "other"))
    assert shown.exit_code == 2
    assert "'demo'" in shown.stderr


@pytest.mark.parametrize("make", [False, True])
def test_resume_of_what_is_no_run_says_so(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "nothing"
    if make:
        folder.mkdir()
    shown = run("train", "--resume", str(folder))
    assert shown.exit_code == 2
    assert "config.toml" in shown.stderr if make else "no such folder" in shown.stderr


def test_resume_beside_another_configuration_is_refused(tmp_path: Path) -> None:
    shown = run("train", "--resume", str(tmp_path), "--config", "examples/demo.toml")
    assert shown.exit_code == 2
    assert "two configurations" in shown.stderr


def failing(error: BaseException) -> Any:
    def command(config: Config) -> int:
        raise error

    return lambda name: command


def test_an_error_inside_a_task_group_is_shown_as_if_it_were_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = ExceptionGroup("tasks", [ValueError("x"), EngineError("start vLLM", "it died", "see engine.log")])
    monkeypatch.setattr(cli_stack, "load_command", failing(ExceptionGroup("outer", [inner])))
    shown = run("train", "--set", f"run.folder={tmp_path}")
    assert shown.exit_code == 2
    assert "it died" in shown.stderr


def test_a_full_disk_is_a_message_and_the_way_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cli_stack, "load_command", failing(OSError(errno.ENOSPC, "No space left on device", "traces.db"))
    )
    shown = run("train", "--set", f"run.folder={tmp_path}")
    assert shown.exit_code == 2
    assert "no space left" in shown.stderr
    assert "--resume" in shown.stderr


def test_an_error_nobody_foresaw_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_stack, "load_command", failing(ZeroDivisionError("a bug")))
    shown = run("train", "--set", f"run.folder={tmp_path}")
    assert shown.exit_code != 0
    assert isinstance(shown.exception, ZeroDivisionError)


def test_the_exit_code_of_training_is_the_exit_code_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def three(config: Config) -> int:
        return 3

    monkeypatch.setattr(cli_stack, "load_command", lambda name: three)
    assert run("train", "--set", f"run.folder={tmp_path}").exit_code == 3


def test_a_command_that_no_package_brings_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="no installed package"):
        cli_stack.load_command("fly")


def test_the_program_starts_without_torch_and_without_training() -> None:
    script = (
        "import sys, harness.cli\n"
        "heavy = [m for m in ('torch', 'transformers', 'trl', 'vllm', 'litellm', 'training') if m in sys.modules]\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_console_script_and_the_module_are_the_same_program() -> None:
    assert isinstance(cli.app, typer.Typer)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "train", "--set", "nonsense"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "key=value" in done.stderr
