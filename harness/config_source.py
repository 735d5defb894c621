"""Where a configuration comes from: a TOML file, `--set key=value`, flags; and how it is written down again.

Knows nothing of what the keys mean: it walks the tree of config.py. Also the one file that reads the environment.
Called by the command line; a program that got a `Config` never needs it.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from harness.config import Config
from harness.errors import ConfigError

SECRETS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY", "HF_TOKEN")

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says that a run cares about. Secrets are only ever reported as set or not set."""

    secrets_set: frozenset[str]
    """Names out of `SECRETS` that hold something."""
    wandb_mode: str | None
    """`WANDB_MODE`, if set."""
    hub_offline: bool
    """True when `HF_HUB_OFFLINE` forbids downloads."""


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """The part of the environment that the harness looks at; `variables` defaults to the process's own."""
    env = os.environ if variables is None else variables
    return Environment(
        secrets_set=frozenset(name for name in SECRETS if env.get(name)),
        wandb_mode=env.get("WANDB_MODE") or None,
        hub_offline=env.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"},
    )


def load_config(
    file: Path | None = None, settings: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> Config:
    """Build the configuration: defaults, then `file`, then `flags`, then `settings`; later ones win.

    `flags` holds dotted keys; None means not given. Each of `settings` is `a.b=value`; the value is TOML (`3`, `true`,
    `[1, 2]`), and what is not TOML is text.
    Raises ConfigError for a file that can't be read, an unknown key (with the closest known one) or a bad value.
    """
    tree: Tree = {}
    origin: dict[str, str] = {}
    if file is not None:
        for key, value in _leaves(_read_toml(file)):
            _put(tree, origin, key, value, f"in {file}")
    for key, value in (flags or {}).items():
        if value is not None:
            _put(tree, origin, key, value, "on the command line")
    for setting in settings:
        key, value = parse_setting(setting)
        _put(tree, origin, key, value, "from --set")
    return _build(tree, origin)


def parse_setting(setting: str) -> tuple[str, Any]:
    """Split `a.b=value` into the dotted key and its value. Raises ConfigError when there is no `=` or no key."""
    key, equals, text = setting.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise ConfigError(f"--set {setting}", "no key=value in it", "write it as --set training.steps=30")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text


def known_keys() -> list[str]:
    """All dotted keys of the tree, in the order of the tree."""
    return [key for key, _, _ in reference()]


def reference(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Every dotted key with its default as TOML (empty where there is none) and what it means, in tree order."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from reference(inner, f"{prefix}{name}.")
        else:
            default = "" if field.default is None else _toml_value(field.default)
            yield f"{prefix}{name}", default, " ".join((field.description or "").split())


def to_toml(config: Config, first_line: str) -> str:
    """The resolved configuration as TOML that `load_config` reads back to the same tree; unset keys are left out.

    `first_line` is the command that runs the file; it becomes the comment on line 1.
    """
    lines = [f"# {first_line}"]
    for section, fields in cast("dict[str, Tree]", config.model_dump(mode="json")).items():
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def write_config(config: Config, path: Path, first_line: str) -> None:
    """Write the resolved configuration in one rename, so that a killed process leaves no half file.

    Raises ConfigError when the folder can't be written (full disk, no permission).
    """
    scratch = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(to_toml(config, first_line), encoding="utf-8")
        os.replace(scratch, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise ConfigError(
            f"the resolved configuration at {path}", str(error), "make room, or name another folder: --set run.folder=…"
        ) from error


def _read_toml(file: Path) -> Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the configuration {file}", error.strerror or str(error), "name a TOML file, such as examples/demo.toml"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file}", f"not TOML: {error}", "mend that line") from error


def _leaves(tree: Tree, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and (value or name in Config.model_fields):
            yield from _leaves(cast("Tree", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _put(tree: Tree, origin: dict[str, str], key: str, value: Any, where: str) -> None:
    keys = known_keys()
    if key not in keys:
        raise ConfigError(f"{key} = {value!r} {where}", "no such key", _closest(key, keys))
    section, name = key.split(".", 1)
    tree.setdefault(section, {})[name] = value
    origin[key] = where


def _closest(key: str, keys: Sequence[str]) -> str:
    in_section = [known for known in keys if known.startswith(f"{key}.")]
    near = in_section[:1] or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    if not near:
        last = {known.rsplit(".", 1)[-1]: known for known in reversed(keys)}
        match = difflib.get_close_matches(key.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.6)
        near = [last[match[0]]] if match else []
    listing = "`harness keys` lists them all"
    return f"did you mean {near[0]}? {listing}" if near else listing


def _build(tree: Tree, origin: Mapping[str, str]) -> Config:
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        key = ".".join(path[:2])
        message = first["msg"].removeprefix("Value error, ")
        if not key:
            raise ConfigError("a configuration whose parts fit together", message, "change one of the two") from error
        where = origin.get(key, "by default")
        raise ConfigError(
            f"{key} = {first['input']!r} {where}",
            message,
            f"default: {_default_of(key)}; `harness keys {key}` explains it",
        ) from error


def _default_of(key: str) -> str:
    section, name = key.split(".", 1)
    return repr(getattr(getattr(Config(), section), name))


def _toml_value(value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    return "[" + ", ".join(_toml_value(item) for item in value) + "]"
