"""What every test may rely on: no network, no keys of the person who runs it, and where optional data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples are judged by what they show, not by how busy the machine is.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_network_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY", "OPENAI_BASE_URL", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the published τ² data (`HARNESS_SHARED`, or `../shared` beside the repository); skips without it."""
    folder = Path(os.environ.get("HARNESS_SHARED") or REPO.parent / "shared")
    if not (folder / "tau2").is_dir():
        pytest.skip(f"no published data at {folder}: set HARNESS_SHARED to a folder that has tau2/")
    return folder
