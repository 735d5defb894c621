"""The prompt of a group judge: shared beginning once, repeated texts once, data escaped, cut to a token budget.

It knows nothing about judges, endpoints, caches or how answers are read; pure and deterministic, text in, text out. The
wording is in `ruler.md`. Called by heats.py and independent.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

from harness.scoring.rubric import Rubric
from harness.scoring.transcript import Event, Transcript, shared_length

TEMPLATE_FILE = Path(__file__).with_name("ruler.md")
PROMPT_VERSION = "ruler-1"
BYTES_PER_TOKEN = 3.0
REPEATED_TEXT_CHARACTERS = 120
# Characters that show as nothing or reorder text: a judge would read something else than a person does.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]"
)


class OverBudget(ValueError):
    """The prompt does not fit the token budget, however much is cut."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One trajectory of a prompt."""

    label: str
    """Its id in this prompt; says nothing about who it is."""
    transcript: Transcript
    """What it did."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A finished judge prompt."""

    messages: list[dict[str, str]]
    """System and user message, OpenAI chat form."""
    labels: tuple[str, ...]
    """Ids that the answer must hold, in order of presentation."""
    estimated_tokens: int
    """Upper estimate by UTF-8 bytes."""
    cut_characters: int
    """Characters left out for length."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One rung of the ladder of truncation: the first that fits is taken, for all trajectories alike."""

    entry: int | None
    """Characters kept of an entry of a trajectory; None keeps all."""
    shared: int | None
    """Characters kept of an entry of the shared beginning and of a text given once."""
    steps: int | None
    """Entries kept of a trajectory."""


LADDER = (
    Cut(None, None, None),
    Cut(8000, 16000, None),
    Cut(4000, 12000, None),
    Cut(2000, 8000, None),
    Cut(1000, 6000, 80),
    Cut(500, 4000, 60),
    Cut(240, 3000, 40),
    Cut(120, 2000, 24),
    Cut(120, 1000, 12),
    Cut(80, 600, 6),
)
GENTLE_LADDER = LADDER[:5]
"""As far as it is better to cut than to make the prompt smaller by splitting a group."""


def build_prompt(
    entries: Sequence[Entry],
    rubric: Rubric,
    max_tokens: int,
    *,
    ladder: Sequence[Cut] = LADDER,
    template_file: Path = TEMPLATE_FILE,
) -> Prompt:
    """One prompt over all entries, in their order. Raises OverBudget when no rung of `ladder` fits `max_tokens`."""
    system = _system_text(rubric, template_file)
    estimate = 0
    for cut in ladder:
        body = _Body(cut)
        user = body.render(entries)
        estimate = estimate_tokens(system) + estimate_tokens(user)
        if estimate <= max_tokens:
            return Prompt(
                messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                labels=tuple(entry.label for entry in entries),
                estimated_tokens=estimate,
                cut_characters=body.cut_characters,
            )
    raise OverBudget(f"{len(entries)} trajectories need {estimate} tokens after all cuts, the budget is {max_tokens}")


def estimate_tokens(text: str) -> int:
    """Tokens of a text, from above for the tokenizers of current judges: one a three bytes of UTF-8."""
    return int(len(text.encode()) / BYTES_PER_TOKEN) + 1


def clean(text: str) -> str:
    """Data as it stands in a prompt: no tag can be opened, no entry begun, nothing invisible."""
    visible = _INVISIBLE.sub("", text.replace("\r\n", "\n"))
    return visible.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "\n  ")


def keep_ends(text: str, limit: int | None) -> str:
    """`text` when it fits, else its two ends with a note between them that says how much was cut."""
    if limit is None or len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]} [… {len(text) - limit} characters cut …] {text[len(text) - tail :]}"


class _Body:
    """The user message under one rung of the ladder; counts what it cuts."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.cut_characters = 0
        self.references: dict[Event, str] = {}

    def render(self, entries: Sequence[Entry]) -> str:
        histories = [entry.transcript.events for entry in entries]
        shared = _shared_events(histories)
        self.references = _repeated_events([history[shared:] for history in histories])
        blocks = [
            _block("tools", [clean(line) for line in entries[0].transcript.tools]),
            _block("start", [self._line(event, self.cut.shared) for event in histories[0][:shared]]),
            _block(
                "texts", [f"{name}: {self._text(event, self.cut.shared)}" for event, name in self.references.items()]
            ),
        ]
        for entry, history in zip(entries, histories, strict=True):
            lines = self._steps(history[shared:])
            blocks.append("\n".join([f'<trajectory id="{entry.label}">', *lines, "</trajectory>"]))
        blocks.append(f"Score these {len(entries)} trajectories: {', '.join(entry.label for entry in entries)}.")
        return "\n\n".join(block for block in blocks if block)

    def _steps(self, events: Sequence[Event]) -> list[str]:
        keep = self.cut.steps
        if keep is None or len(events) <= keep:
            return [self._line(event, self.cut.entry) for event in events]
        head = keep // 2
        tail = keep - head
        dropped = events[head : len(events) - tail]
        self.cut_characters += sum(len(event.text) for event in dropped)
        return [
            *(self._line(event, self.cut.entry) for event in events[:head]),
            f"[… {len(dropped)} entries cut …]",
            *(self._line(event, self.cut.entry) for event in events[len(events) - tail :]),
        ]

    def _line(self, event: Event, limit: int | None) -> str:
        reference = self.references.get(event)
        if reference is not None:
            return f"[{event.role}] see text {reference}"
        return f"[{event.role}] {self._text(event, limit)}"

    def _text(self, event: Event, limit: int | None) -> str:
        if limit is not None and len(event.text) > limit:
            self.cut_characters += len(event.text) - limit
        return clean(keep_ends(event.text, limit))


def _shared_events(histories: Sequence[Sequence[Event]]) -> int:
    """How many events all begin with; of a single history, what came before the agent did anything."""
    if len(histories) > 1:
        return shared_length(histories)
    before = (index for index, event in enumerate(histories[0]) if event.role not in ("system", "user"))
    return next(before, 0)


def _repeated_events(histories: Sequence[Sequence[Event]]) -> dict[Event, str]:
    """Long entries that occur more than once, each with the name it is given once under, in order of occurrence."""
    long = [event for history in histories for event in history if len(event.text) >= REPEATED_TEXT_CHARACTERS]
    counts = Counter(long)
    repeated = [event for event in dict.fromkeys(long) if counts[event] > 1]
    return {event: f"X{number}" for number, event in enumerate(repeated, start=1)}


def _block(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"<{name}>", *lines, f"</{name}>"]) if lines else ""


def _system_text(rubric: Rubric, template_file: Path) -> str:
    text = rubric.text
    if rubric.criteria:
        listed = "\n".join(f"- {criterion.name}: {criterion.text}" for criterion in rubric.criteria)
        text = f"{text}\n\nScore each of these criteria on its own:\n\n{listed}".strip()
    return _template(template_file).substitute(rubric=text, answer_format=answer_format(rubric))


@cache
def _template(template_file: Path) -> Template:
    return Template(template_file.read_text(encoding="utf-8").strip())


def answer_format(rubric: Rubric) -> str:
    """The answer's shape in words, as the system message gives it."""
    value = '"score": number'
    if rubric.criteria:
        value = '"criteria": {' + ", ".join(f'"{criterion.name}": number' for criterion in rubric.criteria) + "}"
    return '{"scores": [{"id": "…", "explanation": "one or two short sentences", ' + value + "}, …]}"
