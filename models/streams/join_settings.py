"""Settings of a join: its streams, the meaning of their columns, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from freshet_serving.models.data.arrow import infer_kind
from freshet_serving.models.data.formats import SCHEMES
from freshet_serving.models.data.source import Field, Schema
from freshet_serving.models.streams.recording_folder import first_recording
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import REQUEST, ROW, TIME

BY_ROW = "row"
MOST_S = 400 * 86400.0
MOST_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """Settings of `freshet join`.

    Attributes:
        outcomes: Folder of Parquet files, or URL of a stream, which may contain a password.
        model: Model whose recordings are joined; "" for the only one.
        key: BY_ROW, or the feature whose value an outcome names.
        value: Column of outcomes with the label; "" for 1. `request` and `time` are columns of outcomes, too.
        score: Output used for calibration and weights; "" for the first.
        wait_s: Window of a row (see models.streams.matching).
        late_s: Age of a row up to which late outcomes correct it; 0 for no corrections.
        lag_s: Delay after which recordings and outcomes can be read.
        every_s: Interval at which a file is written, or once file_rows rows are due.
        window_s: Length of a window of the report.
    """

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
                raise BadInput(f"--{name}: expected {least:g} to {MOST_S:g} seconds, got {value:g}")
        if not 1 <= self.file_rows <= MOST_ROWS:
            raise BadInput(f"--file-rows: expected 1 to {MOST_ROWS}, got {self.file_rows}")
        if 0 < self.late_s <= self.wait_s:
            raise BadInput(f"--late: expected 0, or more than --wait ({self.wait_s:g}), got {self.late_s:g}")

    @property
    def format(self) -> str:
        """Format of the outcomes, as open_stream() expects it."""
        scheme, separator, _ = self.outcomes.partition("://")
        if separator and scheme not in SCHEMES:
            raise BadInput(
                f"--outcomes: expected a folder or a URL with scheme {', '.join(SCHEMES)}, got {scheme[:40]!r}"
            )
        return SCHEMES[scheme] if separator else "parquet"

    @property
    def key_column(self) -> str:
        """Column of the recordings that forms a row's key together with its request."""
        return ROW if self.key == BY_ROW else self.key

    def schemas(self) -> tuple[Schema, Schema]:
        """Return the columns to read of recordings and outcomes; raise BadInput unless the key is one id or string."""
        kind = "id"
        if self.key != BY_ROW:
            columns = first_recording(self.recordings)
            if self.key not in columns.names:
                raise BadInput(f"--key: expected row, or a column of the recordings, got {self.key!r}")
            kind = infer_kind(columns.field(self.key).type, self.key)
            if kind not in ("id", "string"):
                raise BadInput(f"--key: expected a column of single ids or strings, got {self.key!r}")
        recordings = Schema((Field(REQUEST, "string"), Field(self.key_column, kind)), (), TIME)
        label = self.value or ()
        return recordings, Schema((Field(self.request, "string"), Field(self.key, kind)), label, self.time)

    def lasting(self) -> dict[str, str | float]:
        """Return the settings that must not change once a folder is begun."""
        return {"key": self.key, "wait": self.wait_s, "late": self.late_s, "window": self.window_s}
