"""What a join is told: where its streams are, what their columns mean, how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from freshet_serving.models.data.arrow import infer_kind
from freshet_serving.models.data.formats import SCHEMES
from freshet_serving.models.data.source import Field, Schema
from freshet_serving.models.joining.recording_folder import first_recording
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import REQUEST, ROW, TIME

BY_ROW = "row"
MOST_S = 400 * 86400.0
MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """recordings: a folder; outcomes: a folder of Parquet files or a stream's URL, which may hold a password; out: the
    folder that is written. model: "" for the only one. key: BY_ROW, or the feature whose value an outcome names;
    request, time, value: columns of outcomes, value "" for 1. score: the output that calibration and weights go by, ""
    for the first. wait_s, late_s: see models.joining.matching; lag_s: what recordings and outcomes take from their
    time until they can be read; every_s, file_rows: at which a file is written; window_s: of the report. follow: goes
    on with what comes."""

    recordings: str
    outcomes: str = field(repr=False)
    out: str
    model: str = ""
    key: str = BY_ROW
    request: str = "request"
    time: str = "time"
    value: str = ""
    score: str = ""
    wait_s: float = 600.0
    late_s: float = 86400.0
    lag_s: float = 120.0
    every_s: float = 30.0
    window_s: float = 600.0
    file_rows: int = 16384
    follow: bool = False

    def __post_init__(self) -> None:
        bounds = (
            ("wait", self.wait_s, 0.001),
            ("late", self.late_s, 0),
            ("lag", self.lag_s, 0),
            ("every", self.every_s, 0),
        )
        for name, value, least in (*bounds, ("window", self.window_s, 1)):
            if not least <= value <= MOST_S:
                raise BadInput(f"--{name}: {least:g} to {MOST_S:g} seconds wanted, got {value:g}")
        if not 1 <= self.file_rows <= MOST_ROWS:
            raise BadInput(f"--file-rows: 1 to {MOST_ROWS} wanted, got {self.file_rows}")
        if 0 < self.late_s <= self.wait_s:
            raise BadInput(f"--late: 0, or more than --wait ({self.wait_s:g}) wanted, got {self.late_s:g}")

    @property
    def format(self) -> str:
        """Of the outcomes: what open_stream() takes."""
        scheme, separator, _ = self.outcomes.partition("://")
        if separator and scheme not in SCHEMES:
            raise BadInput(f"--outcomes: a folder or a URL of {', '.join(SCHEMES)} wanted, got one of {scheme[:40]!r}")
        return SCHEMES[scheme] if separator else "parquet"

    @property
    def key_column(self) -> str:
        """The recordings' column that a row's key is made of, beside its request."""
        return ROW if self.key == BY_ROW else self.key

    def schemas(self) -> tuple[Schema, Schema]:
        """The columns that are read of recordings, and of outcomes; raises BadInput."""
        kind = "id"
        if self.key != BY_ROW:
            columns = first_recording(self.recordings)
            if self.key not in columns.names:
                raise BadInput(f"--key: row, or a column of the recordings wanted, got {self.key!r}")
            kind = infer_kind(columns.field(self.key).type, self.key)
            if kind not in ("id", "string"):
                raise BadInput(f"--key: a column of single ids or strings wanted, got {self.key!r}")
        recordings = Schema((Field(REQUEST, "string"), Field(self.key_column, kind)), (), TIME)
        label = self.value or ()
        return recordings, Schema((Field(self.request, "string"), Field(self.key, kind)), label, self.time)

    def lasting(self) -> dict[str, str | float]:
        """What a folder that was begun is bound to."""
        return {"key": self.key, "wait": self.wait_s, "late": self.late_s, "window": self.window_s}
