"""The configuration tree: built from files, flags and settings, refused with help, written and read back."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.cli_record import reference_markdown
from harness.config import Config
from harness.config_source import (
    known_keys,
    load_config,
    parse_setting,
    read_environment,
    reference,
    to_toml,
    write_config,
)
from harness.errors import ConfigError

REPO = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPO / "examples").glob("*.toml"))


def test_defaults_alone_make_a_configuration_that_runs() -> None:
    config = load_config()
    assert config == Config()
    assert (config.model.name, config.tools.server, config.reward.kind) == ("nano", "retail", "checks")


def test_a_configuration_never_changes_after_it_was_built() -> None:
    with pytest.raises(ValidationError):
        Config().run.name = "other"


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\nsteps = 3\nlr = 1e-4\ngroup_size = 4\n[model]\nname = 'a'\n")
    config = load_config(file, ["training.lr=1e-3"], {"model.name": "b", "training.steps": None, "training.lr": 1.0})
    assert (config.training.steps, config.training.lr, config.training.group_size) == (3, 1e-3, 4)
    assert config.model.name == "b"


@pytest.mark.parametrize(
    ("setting", "closest"),
    [
        ("training.stepz=3", "training.steps"),
        ("trainin.steps=3", "training.steps"),
        ("steps=3", "training.steps"),
        ("model=nano", "model.name"),
        ("engine.max_seqs=3", "engine.max_num_seqs"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_closest_one(setting: str, closest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings=[setting])
    assert setting.split("=")[0] in caught.value.asked
    assert f"did you mean {closest}?" in caught.value.fix


def test_a_misspelt_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\nstpes = 3\n")
    with pytest.raises(ConfigError, match=r"training\.stpes = 3 in .*run\.toml"):
        load_config(file)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("training.steps=many", "integer"),
        ("training.steps=0", "greater than or equal to 1"),
        ("reward.kind=rulr", "'checks', 'ruler'"),
        ("run.name=../../etc", "pattern"),
        ("rollout.top_p=1.5", "less than or equal to 1"),
        ("training.group_size=1", "greater than or equal to 2"),
    ],
)
def test_a_bad_value_is_shown_with_what_is_wrong_and_the_default(setting: str, says: str) -> None:
    key, value = parse_setting(setting)
    with pytest.raises(ConfigError) as caught:
        load_config(settings=[setting])
    assert caught.value.asked.startswith(f"{key} = {value!r}")
    assert says in caught.value.found
    assert "default: " in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["reward.kind=ruler"], "needs judge.model"),
        (["tools.url=http://127.0.0.1:1"], "go together"),
        (["training.batch_rows=4", "training.group_size=8"], "holds no group"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings=settings)
    assert says in caught.value.found


@pytest.mark.parametrize(
    ("text", "found"), [("[training\nsteps = 3", "not TOML"), ("[training]\nsteps = 3\nsteps = 4", "not TOML")]
)
def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(file) in caught.value.asked
    assert found in caught.value.found
    assert "(at " in caught.value.found


def test_a_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "absent.toml")
    assert "absent.toml" in caught.value.asked
    assert "examples/demo.toml" in caught.value.fix


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("a.b=3", 3),
        ("a.b=1e-3", 1e-3),
        ("a.b=true", True),
        ("a.b='x'", "x"),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b=python agent.py --x 'y'", "python agent.py --x 'y'"),
        ("a.b=x=y", "x=y"),
        ("a.b=", ""),
    ],
)
def test_a_setting_is_toml_or_else_plain_text(setting: str, value: object) -> None:
    assert parse_setting(setting) == ("a.b", value)


@pytest.mark.parametrize("setting", ["training.steps", "=3", ""])
def test_a_setting_without_key_or_value_says_how_to_write_it(setting: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_setting(setting)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=40)


@given(name=TEXTS, args=st.lists(TEXTS, max_size=3), lr=st.floats(1e-12, 1e3), judge=TEXTS)
def test_what_is_written_is_read_back_the_same(name: str, args: list[str], lr: float, judge: str) -> None:
    config = Config.model_validate(
        {"model": {"name": name}, "engine": {"extra_args": args}, "training": {"lr": lr}, "judge": {"model": judge}}
    )
    text = to_toml(config, "harness train --config this.toml")
    assert text.startswith("# harness train --config this.toml\n")
    assert Config.model_validate(tomllib.loads(text)) == config


def test_no_key_of_the_tree_is_read_by_nobody() -> None:
    sources = [path for folder in ("harness", "training") for path in (REPO / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources if path.name != "config.py" or path.parent.name != "harness")
    idle = [key for key in known_keys() if not re.search(rf"\.{key.split('.')[1]}\b", text)]
    assert not idle, f"keys that do nothing: {idle}"


def test_the_reference_in_the_docs_lists_every_key_as_it_is() -> None:
    shown = (REPO / "docs" / "cli.md").read_text()
    assert reference_markdown(list(reference())) in shown, "run: harness keys --markdown, and put it into docs/cli.md"


def test_every_field_of_the_tree_is_explained_in_place() -> None:
    assert [key for key, _, meaning in reference() if not meaning] == []
    assert "training.steps" in known_keys()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.name)
def test_the_first_line_of_each_shipped_file_is_a_command_that_runs_it(file: Path) -> None:
    first = file.read_text().splitlines()[0].removeprefix("# ")
    words = shlex.split(first)
    assert words[:4] == ["harness", "train", "--config", f"examples/{file.name}"]
    flags = dict(zip(words[4::2], words[5::2], strict=True))
    load_config(file, flags={"judge.model": flags.get("--judge")})


def test_nothing_half_written_stays_when_the_folder_takes_no_file(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match=r"run\.folder"):
        write_config(Config(), blocked / "run" / "config.toml", "harness train")
    target = tmp_path / "run" / "config.toml"
    write_config(Config(), target, "harness train")
    assert load_config(target) == Config()
    assert [path.name for path in target.parent.iterdir()] == ["config.toml"]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigError, match="Permission"):
        write_config(Config(), tmp_path / "config.toml", "harness train")


def test_secrets_are_reported_as_set_and_never_by_value() -> None:
    environment = read_environment({"OPENAI_API_KEY": "sk-very-secret", "WANDB_API_KEY": "", "HF_HUB_OFFLINE": "1"})
    assert environment.secrets_set == {"OPENAI_API_KEY"}
    assert environment.hub_offline
    assert "very-secret" not in repr(environment)
