"""What a rollout function returns: a trajectory of messages and choices with its reward, and groups of them.

It knows nothing about gateways, stores or training, and holds no token ids: those are in the run's store, under the
rollout ids that a trajectory carries (law 1). Made by the user's code, gathered by gather.py, trained by model.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from openai.types.chat.chat_completion import Choice

Message = dict[str, Any]
"""A chat message in OpenAI form."""

rollouts_here: ContextVar[dict[str, str] | None] = ContextVar("rollouts_here", default=None)
"""Model name → id of its rollout, of the code that runs now; None outside of rollouts. Set by scope.py."""


def _rollouts_here() -> dict[str, str]:
    here = rollouts_here.get()
    return {} if here is None else here


@dataclass(kw_only=True, slots=True)
class Trajectory:
    """One attempt at a task. Its `messages_and_choices` are for you and for judges; what is trained was recorded."""

    messages_and_choices: list[Message | Choice] = field(default_factory=list[Message | Choice])
    """The conversation: messages as dicts, and choices as the client returned them."""
    reward: float = 0.0
    """What the attempt was worth; compared within its group."""
    tools: list[dict[str, Any]] | None = None
    """Tool definitions that the policy was shown."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Further numbers, logged by name."""
    metadata: dict[str, str | float | bool | None] = field(default_factory=dict[str, str | float | bool | None])
    """Whatever tells it apart; `task_id` and `kind` are kept with its group."""
    logs: list[str] = field(default_factory=list[str])
    """Notes for a person."""
    rollouts: dict[str, str] = field(default_factory=_rollouts_here)
    """Model name → id of the rollout in that model's run; filled when the rollout has ended."""

    def messages(self) -> list[Message]:
        """The conversation as messages, ready for the next request."""
        return [as_message(item) for item in self.messages_and_choices]

    def choices(self) -> list[Choice]:
        """The answers of models in it, in order."""
        return [item for item in self.messages_and_choices if isinstance(item, Choice)]

    def log(self, note: str) -> None:
        """Add a note."""
        self.logs.append(note)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; choices become their messages."""
        return {
            "reward": self.reward,
            "messages": self.messages(),
            "tools": self.tools,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "logs": self.logs,
            "rollouts": self.rollouts,
        }


def as_message(item: Message | Choice) -> Message:
    """A choice as the assistant message that it holds, as a later request repeats it; a message as it is."""
    if not isinstance(item, Choice):
        return item
    message = item.message.model_dump(exclude_none=True)
    # Clients' own copies of the text; a request that carries them differs from what the model was shown.
    return {name: value for name, value in message.items() if name not in {"parsed", "reasoning_content"}}


class TrajectoryGroup:
    """Attempts at the same task, compared with one another.

    Takes trajectories, errors, or awaitables of trajectories; the awaitables run when the group is gathered.
    """

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException | Awaitable[Trajectory]],
        *,
        metadata: Mapping[str, Any] | None = None,
        exceptions: Iterable[BaseException] = (),
    ) -> None:
        items = list(trajectories)
        self.id = f"g-{uuid4().hex}"
        """Its id in the run's store."""
        self._written = False
        self.trajectories = [item for item in items if isinstance(item, Trajectory)]
        """Attempts that have ended and count."""
        self.exceptions = [*(item for item in items if isinstance(item, BaseException)), *exceptions]
        """Why the others don't: what your function raised, or a failure of infrastructure."""
        self.pending = [item for item in items if not isinstance(item, Trajectory | BaseException)]
        """Attempts that have not been started."""
        self.metadata: dict[str, Any] = dict(metadata or {})
        """Whatever tells it apart; `task_id` and `kind` are kept with it."""
        self.metrics: dict[str, float] = {}
        """Numbers of the whole group, such as what judging it took."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def new_id(self) -> str:
        """Its id, the first time; after that a fresh one, so that a group can be written again."""
        taken, self._written = self._written, True
        return f"g-{uuid4().hex}" if taken else self.id

    def about(self, name: str) -> str:
        """`task_id` or `kind` of the group, from its metadata or that of its first trajectory; empty without."""
        sources = [self.metadata, *(trajectory.metadata for trajectory in self.trajectories[:1])]
        return next((str(source[name]) for source in sources if source.get(name) is not None), "")
