"""A server's tools by name, and the one way to call them: check the arguments, run, answer text.

Knows nothing about MCP, HTTP or any domain. A tool is a function whose first parameter is the session's view of its
world (anything with a `state`), the others text, numbers, lists of text or lists of objects; what an object holds is
the tool's own to check. Used by each server's tools.py.
"""

from __future__ import annotations

import inspect
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, get_type_hints

from mcp_servers.errors import ToolFault
from mcp_servers.state import State

ToolFunction = Callable[..., Any]
MAX_ARGUMENT_CHARS = 10_000
MAX_ARGUMENT_ITEMS = 100
MAX_ARGUMENT_NUMBER = 1_000_000_000


class View(Protocol):
    """A session as a world's tools see it."""

    @property
    def state(self) -> State:
        """The session's state."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call answers."""

    text: str
    """What the agent reads: bare text, or JSON."""
    is_error: bool = False
    """Whether the call failed; the state is then as before."""
    value: Any = None
    """The JSON object behind the text, where it is one; None otherwise."""


class Toolbox:
    """The tools of one world."""

    def __init__(self, reads: Iterable[ToolFunction], writes: Iterable[ToolFunction]) -> None:
        self.writes = {tool.__name__: tool for tool in writes}
        self.tools = {tool.__name__: tool for tool in reads} | self.writes
        self._parameters = {name: _parameters(tool) for name, tool in self.tools.items()}

    def call(self, view: View, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs one tool and commits what it did. See `run`."""
        result = self.run(view, name, arguments)
        view.state.commit()
        return result

    def run(self, view: View, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs one tool and leaves what it did as the state's draft, for the caller to commit or roll back.

        A call that fails leaves no draft and answers `Error: …`; nothing is raised for the agent's faults.
        """
        try:
            value = self._checked(name, arguments)(view, **arguments)
        except ToolFault as fault:
            view.state.rollback()
            return ToolResult(_printable(f"Error: {fault}"), is_error=True)
        except BaseException:
            view.state.rollback()
            raise
        if isinstance(value, str):
            return ToolResult(_printable(value))
        return ToolResult(json.dumps(value), value=cast("Any", value) if isinstance(value, dict) else None)

    def _checked(self, name: str, arguments: Mapping[str, Any]) -> ToolFunction:
        parameters = self._parameters.get(name)
        if parameters is None:
            raise ToolFault(f"Tool '{name[:80]}' not found.")
        for given, value in arguments.items():
            if given not in parameters:
                known = ", ".join(parameters) or "no arguments"
                raise ToolFault(f"{name}() got an unexpected argument '{given[:80]}'; it takes {known}")
            complaint = _complaint(value, parameters[given])
            if complaint:
                raise ToolFault(f"{name}() argument '{given}' {complaint}")
        if len(arguments) < len(parameters):
            missing = [parameter for parameter in parameters if parameter not in arguments]
            raise ToolFault(f"{name}() is missing {', '.join(missing)}")
        return self.tools[name]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a parameter takes."""

    item: type
    """`str`, `int`, `float` or `dict`: the value, or each item of the list."""
    many: bool
    """Whether it is a list."""


_NAMES = {str: "a string", int: "a whole number", float: "a number", dict: "an object"}


def _parameters(tool: ToolFunction) -> dict[str, _Kind]:
    """Parameter name → what it takes, the view left out."""
    hints = get_type_hints(tool)
    kinds = {name: _kind(hints[name]) for name in list(inspect.signature(tool).parameters)[1:]}
    strange = {name: hints[name] for name, kind in kinds.items() if kind.item not in _NAMES}
    if strange:
        raise TypeError(f"{tool.__name__}: parameters must be text, numbers, list[str] or lists of objects: {strange}")
    return kinds


def _kind(hint: Any) -> _Kind:
    many = getattr(hint, "__origin__", None) is list
    item = hint.__args__[0] if many else hint
    return _Kind(dict if many and isinstance(item, type) and item is not str else item, many)


def _complaint(value: Any, wanted: _Kind) -> str | None:
    if not wanted.many:
        return _item_complaint(value, wanted.item)
    if type(value) is not list:
        return f"must be a list of {_NAMES[wanted.item].split()[-1]}s, got {reprlib.repr(value)}"
    items = cast("list[Any]", value)
    if len(items) > MAX_ARGUMENT_ITEMS:
        return f"has {len(items)} items, at most {MAX_ARGUMENT_ITEMS}"
    complaints = ((n, _item_complaint(item, wanted.item)) for n, item in enumerate(items))
    return next((f"item {n}: {found}" for n, found in complaints if found), None)


def _item_complaint(value: Any, wanted: type) -> str | None:
    if wanted in (int, float):
        return _number_complaint(value, wanted)
    if type(value) is not wanted:
        return f"must be {_NAMES[wanted]}, got {reprlib.repr(value)}"
    size = len(value if wanted is str else json.dumps(value))
    return None if size <= MAX_ARGUMENT_CHARS else f"has {size} characters, at most {MAX_ARGUMENT_CHARS}"


def _number_complaint(value: Any, wanted: type) -> str | None:
    number = value
    if type(value) is str and wanted is float:
        # Models write amounts as text, and published tools take them so; the tool gets what was given.
        number = _read_number(value)
    if type(number) is not int and type(number) is not float:
        return f"must be {_NAMES[wanted]}, got {reprlib.repr(value)}"
    # Also refuses what is no number (NaN).
    if not -MAX_ARGUMENT_NUMBER <= number <= MAX_ARGUMENT_NUMBER:
        return f"must be within ±{MAX_ARGUMENT_NUMBER}, got {reprlib.repr(value)}"
    return None if wanted is float or number == int(number) else f"must be {_NAMES[wanted]}, got {value}"


def _read_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _printable(text: str) -> str:
    """The text with lone surrogates replaced: JSON can bring them in, UTF-8 can't carry them out."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
