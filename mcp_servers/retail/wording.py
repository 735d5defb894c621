"""What generated retail customers say: phrases.toml, drawn from as mcp_servers/wording.py does.

Knows nothing about orders or tools. Used by tasks.py, dialog.py and demonstrations.py.
"""

from __future__ import annotations

import random
from pathlib import Path

from mcp_servers.wording import Phrases, Wording, read_phrases

PHRASES = Path(__file__).with_name("phrases.toml")


def phrases() -> Phrases:
    """Split → phrase name → lines, and under "reason" reason → lines."""
    return read_phrases(PHRASES)


def wording_of(split: str, rng: random.Random) -> Wording:
    """Draws from the phrases of a split."""
    return Wording(phrases()[split], rng)
