"""One sampled turn in a token forest: where its tokens begin, what is new in it, what was said.

It knows nothing about how turns are matched or trained.
`forest.py` hangs nodes under each other, `forks.py` compares them, `tokens.py` cuts rows along their paths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from traces.conversation import Conversation
from traces.trajectory import Ids, Logprobs


class ForkCause(StrEnum):
    """Why the tokens of a turn are not continued."""

    TEMPLATE = "template"
    """The messages say the same, but the chat template renders what was sampled otherwise."""
    EDITED_HISTORY = "edited_history"
    """The agent changed, left out or added messages, or changed the tools."""
    TOOL_JSON = "tool_json"
    """The messages say the same, but a tool call was written again with other spacing or order."""
    REASONING_STRIPPED = "reasoning_stripped"
    """The messages say the same, but the reasoning before the answer is gone."""
    UNKNOWN = "unknown"
    """Sampled tokens were replaced, and the messages are not known."""


@dataclass(frozen=True, slots=True)
class Fork:
    """One turn that left the turn it should have continued."""

    cause: ForkCause
    """Why."""
    message_index: int | None
    """First message that differs; -1 where the tools do; None where the messages are not known."""
    token_index: int
    """First token of the new prompt that differs from the turn that was left."""
    node_index: int
    """The turn that forked."""
    left_index: int
    """The turn that was left."""
    drift_tokens: int
    """Sampled tokens the policy reads otherwise from now on; 0 where the agent edited its history."""


Said = Conversation | Callable[[], Conversation] | None
"""What was said at a turn; a callable is only asked where a fork may have to be explained."""


@dataclass(slots=True, eq=False)
class Node:
    """One sampled turn. Its whole sequence is its ancestors' segments and its own."""

    index: int
    """Order of attaching, from 0."""
    parent: Node | None
    """The turn whose prompt and completion its prompt begins with; None at a root."""
    start: int
    """Where its segment begins: the length of the parent's sequence."""
    prompt_length: int
    """Ids in its whole prompt."""
    segment_T: Ids
    """The ids that are new: the rest of the prompt, then the completion."""
    logprobs_T: Logprobs
    """Log-probability of each completion id; shorter where the engine left some out."""
    version: int
    """Policy version that sampled it; -1 where none of ours did."""
    said: Said = None
    """What was said."""
    fork: Fork | None = None
    """Why it did not continue the turn that it should have; None where it did."""
    superseded: bool = False
    """True where the client gave up on the answer and asked the same once more."""
    children: list[Node] = field(default_factory=list["Node"])
    """In order of attaching."""

    @property
    def end(self) -> int:
        """Length of its whole sequence, prompt and completion."""
        return self.start + len(self.segment_T)

    @property
    def completion_length(self) -> int:
        """Number of sampled ids."""
        return self.end - self.prompt_length

    def path(self) -> list[Node]:
        """From its root to itself."""
        nodes: list[Node] = [self]
        while (parent := nodes[-1].parent) is not None:
            nodes.append(parent)
        return nodes[::-1]

    def sequence(self) -> Ids:
        """Prompt and completion, whole, shape (end,)."""
        return np.concatenate([node.segment_T for node in self.path()])

    def conversation(self) -> Conversation | None:
        """What was said, worked out on first use."""
        if callable(self.said):
            self.said = self.said()
        return self.said
