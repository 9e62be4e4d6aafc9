"""Progress of a model's trainer, as the file `<model>/trainer.json` carries it from the trainer to servers.

Invariants
- The trainer replaces the file whole (models.training.heartbeat); a server only reads it.
- It decides nothing: no server loads, holds or serves because of it. So it is not signed: any writer of the
  repository may forge it.
- Every field is bounded, in the writer and in the reader: TEXT_LENGTH printable characters, finite numbers.
- It holds no data of users: an error is cut before what it got (without_values), figures are those of whole batches.
- `beat` grows with every write, so that the bytes change although training stands still.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from freshet_serving.processor.errors import Corrupt, printable
from freshet_serving.processor.repository.version import TRAINER

MAX_TRAINER_NBYTES = 1 << 16
FORMAT = "freshet-trainer/1"
TEXT_LENGTH, MAX_FIGURES = 300, 16
LARGEST = 2.0**53


class TrainerState(StrEnum):
    """State of a run; all but RUNNING are its last."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    REFUSED = "refused by the gate"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """Progress of one run.

    Attributes:
        run: Random name of the run.
        beat: Number of this report among those of the run.
        every_s: Seconds until the next report.
        follow: True if the run follows a stream and has no end.
        started_at: Start of the run by the trainer's clock, Unix seconds.
        written_at: Time of the report by the trainer's clock, Unix seconds.
        rows: Rows that this run has trained on.
        rows_per_s: Rows per second of the newest minute.
        waiting_rows: Rows that have arrived and are not trained on yet.
        version: Version that deltas are published to; 0 before the first.
        step: Step of the newest delta.
        published_at: Newest publication by the trainer's clock, Unix seconds; 0 for none.
        held_out: Figures of the held-out rows by name, such as auc and log_loss.
        window: Figures of the newest window before training on it.
        gate: Newest verdict of the gate.
        held: Why the trainer's guard holds deltas.
        trouble: Why the stream cannot be read.
        store_trouble: Why histories cannot be written to an online store.
        stale_tables: Joined tables whose newest content cannot be read.
        error: Error that ended the run.
    """

    run: str
    state: TrainerState
    beat: int
    every_s: float
    follow: bool = False
    started_at: float = 0.0
    written_at: float = 0.0
    rows: int = 0
    rows_per_s: float = 0.0
    waiting_rows: int = 0
    version: int = 0
    step: int = 0
    published_at: float = 0.0
    held_out: Mapping[str, float] = field(default_factory=dict)
    window: Mapping[str, float] = field(default_factory=dict)
    gate: str = ""
    held: str = ""
    trouble: str = ""
    store_trouble: str = ""
    stale_tables: int = 0
    error: str = ""

    def dump(self) -> bytes:
        """Return the file's content; texts are cut to TEXT_LENGTH, and figures that are not finite left out."""
        document: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        for name, value in document.items():
            if isinstance(value, str):
                document[name] = bounded_text(value)
            elif isinstance(value, Mapping):
                document[name] = {key: number for key, number in value.items() if math.isfinite(number)}
        return json.dumps(document, indent=1, allow_nan=False).encode()


KINDS = {name: type(value) for name, value in asdict(TrainerReport("", TrainerState.RUNNING, 0, 0.0)).items()}


def parse_trainer_report(data: bytes) -> TrainerReport:
    """Parse a file that anybody may have written, without fields that a newer trainer added; raise Corrupt."""
    if len(data) > MAX_TRAINER_NBYTES:
        raise Corrupt(f"{TRAINER}: expected at most {MAX_TRAINER_NBYTES} bytes, got {len(data)}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise Corrupt(f"{TRAINER}: expected JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise Corrupt(f"{TRAINER}: expected an object with format {FORMAT!r}")
    needed = [f.name for f in fields(TrainerReport)[:4]]
    if missing := [name for name in needed if name not in document]:
        raise Corrupt(f"{TRAINER}: expected the field {missing[0]!r}, which is missing")
    return TrainerReport(
        **{name: _read(name, document[name], kind) for name, kind in KINDS.items() if name in document}
    )


def without_values(message: str) -> str:
    """Return an error's message without the value that it got, which may be a user's data."""
    return bounded_text(message.partition(", got ")[0])


def bounded_text(text: str) -> str:
    """Return a text as one printable line of at most TEXT_LENGTH characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= TEXT_LENGTH else f"{line[: TEXT_LENGTH - 1]}…"


def _read(name: str, value: Any, kind: type) -> Any:
    if kind is TrainerState:
        if value not in list(TrainerState):
            raise Corrupt(f"{TRAINER}: {name}: expected one of {', '.join(TrainerState)}")
        return TrainerState(value)
    if kind is str and isinstance(value, str):
        return bounded_text(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (int, float) and _is_number(value) and 0 <= value <= LARGEST:
        return kind(value)
    if kind is dict and isinstance(value, dict) and len(value) <= MAX_FIGURES:
        if all(_is_number(number) and abs(number) <= LARGEST for number in value.values()):
            return {bounded_text(key)[:40]: float(number) for key, number in value.items()}
        raise Corrupt(f"{TRAINER}: {name}: expected finite numbers")
    expected = {str: "a text", bool: "true or false", dict: f"at most {MAX_FIGURES} figures by name"}
    raise Corrupt(f"{TRAINER}: {name}: expected {expected.get(kind, 'a number of at least 0')}")


def _is_number(value: Any) -> bool:
    """Return True for a number of JSON; NaN and infinity pass no bound of their readers."""
    return isinstance(value, int | float) and not isinstance(value, bool)
