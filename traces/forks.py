"""Why a turn did not continue the turn it should have: cause, message, first differing token.

It knows nothing about spans or training; pure.
`TokenForest.attach` asks it about every turn that hangs beside another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from traces.conversation import Conversation
from traces.node import Fork, ForkCause, Node
from traces.tokenrows import shared_length
from traces.trajectory import Ids


def explain_fork(nodes: Sequence[Node], left: Node | None, node: Node, prompt_ids_T: Ids) -> Fork | None:
    """The fork of a turn, before it is added to the others; None for a sample, a branch or a new agent.

    `left` is the turn that the new one's messages continue, None where they continue none or are not known.
    """
    if node.conversation() is None:
        return _fork_by_tokens(nodes, node, prompt_ids_T)
    if left is not None and not _is_reproduced(left, node, prompt_ids_T):
        return _drift(left, node, prompt_ids_T)
    return _edit(nodes, left, node, prompt_ids_T)


def _is_reproduced(left: Node, node: Node, prompt_ids_T: Ids) -> bool:
    if node.parent is left:
        return True
    return left.end <= len(prompt_ids_T) and shared_length(left.sequence(), prompt_ids_T) == left.end


def _fork_by_tokens(nodes: Sequence[Node], node: Node, prompt_ids_T: Ids) -> Fork | None:
    """Without messages only a prompt that goes on past another turn's prompt, with other tokens, is a fork."""
    for other in reversed(nodes):
        if other.parent is not node.parent:
            continue
        shared = other.start + shared_length(other.segment_T, prompt_ids_T[other.start :])
        if other.prompt_length <= shared < min(other.end, len(prompt_ids_T)):
            drift = _sampled_after([other], shared)
            return Fork(ForkCause.UNKNOWN, None, shared, node.index, other.index, drift)
    return None


def _sampled_after(path: Iterable[Node], position: int) -> int:
    return sum(max(0, node.end - max(node.prompt_length, position)) for node in path)


def _drift(left: Node, node: Node, prompt_ids_T: Ids) -> Fork:
    """The messages are what they were, the tokens are not: find the turn in which they part, and why."""
    path = left.path()
    shared = shared_length(left.sequence(), prompt_ids_T)
    parted = next((step for step in path if step.end > shared), left)
    cause, message_index = ForkCause.TEMPLATE, _message_index(parted, shared)
    said = parted.conversation()
    if said is not None and shared >= parted.prompt_length:
        if said.has_reasoning:
            cause = ForkCause.REASONING_STRIPPED
        elif said.has_tool_calls:
            cause = ForkCause.TOOL_JSON
    return Fork(cause, message_index, shared, node.index, left.index, _sampled_after(path, shared))


def _message_index(parted: Node, shared: int) -> int | None:
    said = parted.conversation()
    if said is None:
        return None
    if shared >= parted.prompt_length:
        return len(said.messages)
    before = parted.parent.conversation() if parted.parent is not None else None
    return min(len(before.messages) + 1, len(said.messages) - 1) if before is not None else 0


def _edit(nodes: Sequence[Node], left: Node | None, node: Node, prompt_ids_T: Ids) -> Fork | None:
    """An edit where sampled answers stand in another history than they were sampled in, or were replaced."""
    said = node.conversation()
    if said is None:
        return None
    nearest, shared_messages = _nearest(nodes, said)
    if nearest is None:
        return None
    left_said = left.conversation() if left is not None else None
    continued = len(left_said.messages) + 1 if left_said is not None else 0
    unsampled = [i for i in said.assistant_at if i >= continued]
    outputs = {c.output for c in (other.conversation() for other in nodes) if c is not None}
    moved = any(said.messages[i] in outputs for i in unsampled)
    nearest_said = nearest.conversation()
    first_output = _first_output(nearest)
    past_output = nearest_said is not None and first_output <= shared_messages < len(said.messages)
    replaced = past_output and (bool(unsampled) or left is None)
    if not (moved or replaced):
        return None
    token_index = shared_length(nearest.sequence(), prompt_ids_T)
    return Fork(ForkCause.EDITED_HISTORY, shared_messages, token_index, node.index, nearest.index, 0)


def _first_output(node: Node) -> int:
    said = node.path()[0].conversation()
    return len(said.messages) if said is not None else 0


def _nearest(nodes: Sequence[Node], said: Conversation) -> tuple[Node | None, int]:
    """The turn that shares most messages from the start, newest first, and how many; -1 where the tools differ."""
    nearest, most = None, -2
    for other in reversed(nodes):
        other_said = other.conversation()
        if other_said is None:
            continue
        chain = (*other_said.chain, other_said.history)
        shared = -1
        for ours, theirs in zip(said.chain, chain, strict=False):
            if ours != theirs:
                break
            shared += 1
        if shared > most:
            nearest, most = other, shared
    return nearest, most
