"""The errors a person can act on: what was asked, what was found, what to do.

One class per border, so that a caller catches the border it can do something about. Knows nothing about how the
message is printed (cli.py) and nothing about rollouts: a failed rollout is data with an `Ending`, never one of these.
Raised everywhere in `harness` and `training`; `traces`, which imports nothing of ours, defines its own `StoreError`.
"""

from __future__ import annotations

from traces.store import StoreError


class HarnessError(Exception):
    """A program that can't go on. Every part is one sentence or less; `asked` carries the offending value."""

    def __init__(self, asked: str, found: str, fix: str) -> None:
        super().__init__(asked, found, fix)
        self.asked = asked
        self.found = found
        self.fix = fix

    def __str__(self) -> str:
        return f"asked: {self.asked}\nfound: {self.found}\nfix:   {self.fix}"


class ConfigError(HarnessError):
    """The configuration: a file, a key, a value, the environment."""


class EngineError(HarnessError):
    """The inference engine: didn't start, died, or refused a model or an adapter."""


class GatewayError(HarnessError):
    """The gateways: didn't start, or answered with something other than they promise."""


class ToolServerError(HarnessError):
    """A task server: didn't start, or its control API failed."""


class AgentError(HarnessError):
    """The agent as given by the user: no such file, no `run` in it, no such command."""


class JudgeError(HarnessError):
    """The judge: not configured, not reachable, or not to be understood."""


class SimulatorError(HarnessError):
    """The simulated user: nothing to play it from, not reachable, or not to be used."""


class TrainingError(HarnessError):
    """The trainer: died, or can't go on from what it found."""


__all__ = [
    "AgentError",
    "ConfigError",
    "EngineError",
    "GatewayError",
    "HarnessError",
    "JudgeError",
    "SimulatorError",
    "StoreError",
    "ToolServerError",
    "TrainingError",
]
