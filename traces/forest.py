"""The token forest of one rollout: every sampled turn hangs under the turn whose tokens it continues, exactly.

It knows nothing about spans, HTTP, tokenizers or rewards; pure, not thread-safe.
The model gateway keeps one live per rollout (`continued`, `attach`); `tokens.py` grows one from a trajectory and
cuts training rows from it; `forks.py` says why a turn did not continue what it should have.
"""

from __future__ import annotations

import numpy as np

from traces.conversation import Conversation
from traces.forks import explain_fork
from traces.node import Fork, Node, Said
from traces.span import Tokens
from traces.trajectory import Ids


class TokenForest:
    """Turns of one rollout by exact continuation: parallel agents, samples of one prompt, forks."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        """In order of attaching."""
        self.roots: list[Node] = []
        """Turns that continue no other."""
        self._histories: dict[bytes, list[Node]] = {}
        self._indexed = 0

    @property
    def forks(self) -> list[Fork]:
        """Every fork, in order of attaching."""
        return [node.fork for node in self.nodes if node.fork is not None]

    @property
    def drift_tokens(self) -> int:
        """Sampled tokens that the policy later read otherwise, though nobody edited the history (law 2: none)."""
        return sum(fork.drift_tokens for fork in self.forks)

    def deepest_match(self, prompt_ids_T: Ids) -> tuple[Node | None, int]:
        """The turn with the longest sequence that the prompt begins with, and that length; (None, 0) without one."""
        best: Node | None = None
        pending = list(self.roots)
        while pending:
            node = pending.pop()
            if node.end <= len(prompt_ids_T) and np.array_equal(node.segment_T, prompt_ids_T[node.start : node.end]):
                if best is None or node.end > best.end:
                    best = node
                pending.extend(node.children)
        return best, best.end if best is not None else 0

    def continued(self, conversation: Conversation) -> Node | None:
        """The turn whose request and answer these messages begin with; the newest of the deepest, None without one."""
        self._index_histories()
        for key in reversed(conversation.chain):
            if key in self._histories:
                return self._histories[key][-1]
        return None

    def attach(self, tokens: Tokens, version: int, said: Said = None, *, retry: bool = False) -> Node:
        """Add a sampled turn under the turn its prompt continues; its `fork` says where it should have continued one.

        `retry` marks a request that its client has sent before: the answer it gave up on is superseded.
        """
        parent, start = self.deepest_match(tokens.prompt_ids_T)
        siblings = parent.children if parent is not None else self.roots
        node = Node(
            index=len(self.nodes),
            parent=parent,
            start=start,
            prompt_length=len(tokens.prompt_ids_T),
            segment_T=np.concatenate([tokens.prompt_ids_T[start:], tokens.completion_ids_T]).astype(np.int32),
            logprobs_T=tokens.logprobs_T,
            version=version,
            said=said,
        )
        if retry:
            self._supersede(node, siblings)
        if siblings:
            conversation = node.conversation()
            left = self.continued(conversation) if conversation is not None else None
            node.fork = explain_fork(self.nodes, left, node, tokens.prompt_ids_T)
        siblings.append(node)
        self.nodes.append(node)
        return node

    def _supersede(self, node: Node, siblings: list[Node]) -> None:
        for other in reversed(siblings):
            rest = slice(0, node.prompt_length - node.start)
            if other.children or other.superseded or other.prompt_length != node.prompt_length:
                continue
            if np.array_equal(other.segment_T[rest], node.segment_T[rest]):
                other.superseded = True
                return

    def _index_histories(self) -> None:
        for node in self.nodes[self._indexed :]:
            conversation = node.conversation()
            if conversation is not None and conversation.output is not None:
                self._histories.setdefault(conversation.history, []).append(node)
        self._indexed = len(self.nodes)
