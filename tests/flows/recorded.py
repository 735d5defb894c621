"""Spans, rollouts and groups as a run records them: for the tests of the store and the processes they kill.

It knows nothing about pytest, so that a child process starts fast.
"""

from __future__ import annotations

import numpy as np

from traces.build import ModelCall, Outcome, Place, chat_span
from traces.records import GroupRecord, RolloutRecord
from traces.span import Span, Tokens
from traces.store import Store
from traces.trajectory import Ending, Score

RUN = "run-1"


def model_span(rollout_id: str, prompt: list[int], completion: list[int], trace_id: str = "0" * 31 + "1") -> Span:
    place = Place(trace_id=trace_id, rollout_id=rollout_id, group_id="g", run_id=RUN)
    tokens = Tokens(
        np.array(prompt, np.int32), np.array(completion, np.int32), np.full(len(completion), -0.25, np.float32)
    )
    messages = [{"role": "user", "content": f"prompt of {len(prompt)}"}]
    output = {"role": "assistant", "content": "ok"}
    call = ModelCall(model="m", messages=messages, output=output, tokens=tokens, policy_version=2)
    return chat_span(place, Outcome(start_ns=1, end_ns=2), call)


def end_rollout(store: Store, rollout_id: str, group_id: str, ending: Ending = Ending.ANSWERED) -> None:
    store.append_rollout(
        RolloutRecord(rollout_id=rollout_id, group_id=group_id, run_id=RUN, task_id="t", split="train", ending=ending)
    )


def close_group(store: Store, number: int) -> str:
    group_id, rollout_id = f"g{number}", f"g{number}-r0"
    end_rollout(store, rollout_id, group_id)
    record = GroupRecord(
        group_id=group_id, run_id=RUN, task_id="t", split="train", position=number, rollout_ids=(rollout_id,)
    )
    store.append_group(record, {rollout_id: [Score(value=1.0, name="checks")]})
    return group_id
