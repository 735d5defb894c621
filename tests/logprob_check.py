"""The engine's log-probabilities of a run's rollouts beside a recomputation by the trainer's model, in float32.

    python -m tests.logprob_check runs/demo [--rollouts 1000]

Reads what was sampled at temperature 1 from the run's store, by policy version, loads each version's adapter through
PEFT, and says the largest difference, the drift tokens and the forks. Exit code 1 where a difference exceeds 1e-3.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from transformers import AutoModelForCausalLM

from traces import semconv
from traces.node import ForkCause
from traces.store import Store
from traces.tokens import Row, cut_rows
from training.config import STORE_FILE, load_trainer_config

LIMIT = 1e-3
BATCH_TOKENS = 16_384


def main() -> int:
    """Compare and print; 0 where every difference is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rollouts", type=int, default=None, help="the first so many (default: all)")
    options = parser.parse_args()
    started = time.perf_counter()
    by_version: dict[int, list[Row]] = defaultdict(list)
    rollouts = turns = drift = 0
    forks: dict[ForkCause, int] = defaultdict(int)
    with Store(options.run / STORE_FILE, create=False) as store:
        for record in store.rollouts(ended=True):
            if rollouts == options.rollouts:
                break
            temperatures = {span.attributes.get(semconv.REQUEST_TEMPERATURE) for span in store.spans(record.rollout_id)}
            # What is read off greedily is not a draw, and the engine reports it without a temperature.
            if temperatures - {None} != {1.0}:
                continue
            trajectory = store.trajectory(record.rollout_id)
            cut = cut_rows(trajectory)
            rollouts, turns, drift = rollouts + 1, turns + len(trajectory.turns), drift + cut.drift_tokens
            for fork in cut.forks:
                forks[fork.cause] += 1
            for row in cut.rows:
                (version,) = set(row.versions_T[row.mask_T].tolist())
                by_version[version].append(row)
    model_folder = load_trainer_config(options.run).model
    differences = [differences_of(rows, model_folder, options.run, v) for v, rows in sorted(by_version.items())]
    differences_T = np.concatenate(differences)
    worst = float(differences_T.max())
    print(f"rollouts {rollouts}, turns {turns}, policy versions {len(by_version)}, sampled tokens {differences_T.size}")
    print(f"drift tokens {drift}, forks {dict(forks)}")
    print(f"log-probability, engine against trainer: max {worst:.2e}, mean {differences_T.mean():.2e}, limit {LIMIT:g}")
    print(f"{time.perf_counter() - started:.0f} s")
    return int(worst >= LIMIT)


def differences_of(rows: list[Row], model_folder: str, run: Path, version: int) -> NDArray[np.float32]:
    """Absolute differences over all sampled tokens of the rows, which one version sampled."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    if version > 0:
        model = PeftModel.from_pretrained(model, str(run / "adapters" / f"policy-v{version}"))
    model.eval()
    found = [differences_in(batch, model) for batch in batches(rows)]
    return np.concatenate(found)


def batches(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows of like length together."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids_T)):
        if batch and len(row.ids_T) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    yield batch


@torch.no_grad()
def differences_in(batch: list[Row], model: Any) -> NDArray[np.float32]:
    """Absolute differences over the sampled tokens of one padded batch."""
    longest = max(len(row.ids_T) for row in batch)
    ids_BT = torch.zeros(len(batch), longest, dtype=torch.long)
    there_BT = torch.zeros(len(batch), longest, dtype=torch.long)
    for place, row in enumerate(batch):
        ids_BT[place, : len(row.ids_T)] = torch.from_numpy(row.ids_T.astype(np.int64))
        there_BT[place, : len(row.ids_T)] = 1
    logits_BTV = model(input_ids=ids_BT, attention_mask=there_BT).logits
    found: list[NDArray[np.float32]] = []
    for place, row in enumerate(batch):
        (sampled,) = np.nonzero(row.mask_T)
        logits_SV = logits_BTV[place, torch.from_numpy(sampled) - 1].float()
        ids_S1 = ids_BT[place, torch.from_numpy(sampled)].unsqueeze(1)
        logprobs_S = torch.log_softmax(logits_SV, dim=-1).gather(1, ids_S1).squeeze(1)
        found.append(np.abs(cast("NDArray[np.float32]", logprobs_S.numpy()) - row.logprobs_T[sampled]))
    return np.concatenate(found)


if __name__ == "__main__":
    raise SystemExit(main())
