"""State of a join as of one of its files, from which a restart resumes.

It is read as untrusted input: the type of each field is checked, decompressed sizes are bounded before decompression,
and anything else raises Corrupt.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from freshet_serving.models.streams.matching import JoinCounts, OpenOutcomes, counts_from
from freshet_serving.processor.errors import BadInput, Corrupt

FORMAT = "freshet-join/1"
MOST_ROWS = 1 << 62
_NUMBER = (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "settings": (dict,),
    "recordings": (int,),
    "outcomes": (dict,),
    "counts": (dict,),
    "share": (dict,),
    "windows": (dict,),
    "until_s": _NUMBER,
    "newest_s": (*_NUMBER, type(None)),
    "oldest_late": (int,),
}
_SETTINGS: dict[str, tuple[type, ...]] = {"key": (str,), "wait": _NUMBER, "late": _NUMBER, "window": _NUMBER}


@dataclass(frozen=True, slots=True)
class JoinState:
    """State of a join.

    Attributes:
        settings: Settings that the folder, like `model`, is bound to.
        recordings: Number of the next row to emit.
        share: State of LateShare.
        windows: State of JoinWindows.
        until_s: Unix time before which everything has its fate.
        newest_s: Time of the newest row emitted with this file; None if there was none.
        oldest_late: First file that pending corrections may refer to.
        disowned: Keys left out with this file because several requests have their id.
    """

    model: str = ""
    settings: Mapping[str, str | float] = field(default_factory=dict)
    recordings: int = 0
    outcomes: OpenOutcomes = field(default_factory=OpenOutcomes)
    counts: JoinCounts = field(default_factory=JoinCounts)
    share: Mapping[str, list[float]] = field(default_factory=dict)
    windows: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    until_s: float = float("-inf")
    newest_s: float | None = None
    oldest_late: int = 0
    disowned: tuple[bytes, ...] = ()

    def to_json(self) -> dict[str, Any]:
        packed = {"outcomes": self.outcomes.to_json(), "counts": asdict(self.counts)}
        keys = [base64.b64encode(key).decode() for key in self.disowned]
        plain = {name: getattr(self, name) for name in _KINDS if name not in packed}
        return {"format": FORMAT, **plain, **packed, **({"disowned": keys} if keys else {})}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> JoinState:
        """Parse the output of to_json(); raise BadInput for another format and Corrupt for invalid content."""
        if said.get("format") != FORMAT:
            raise BadInput(f"--out: expected a folder of format {FORMAT!r}, got {str(said.get('format'))[:40]!r}")
        for name, kinds in _KINDS.items():
            _check(name in said and type(said[name]) in kinds, name)
        settings = said["settings"]
        _check(settings.keys() == _SETTINGS.keys(), "settings")
        for name, kinds in _SETTINGS.items():
            _check(type(settings[name]) in kinds, f"settings.{name}")
        _check(0 <= said["recordings"] < MOST_ROWS, "recordings")
        _check(0 <= said["oldest_late"] < MOST_ROWS, "oldest_late")
        _check(not math.isnan(said["until_s"]), "until_s")
        plain = {name: said[name] for name in _KINDS}
        packed = {"outcomes": OpenOutcomes.from_json(said["outcomes"]), "counts": counts_from(said["counts"])}
        return JoinState(**(plain | packed), disowned=_keys(said.get("disowned", [])))


def _keys(said: Any) -> tuple[bytes, ...]:
    """Decode disowned keys; a state without any, as older releases wrote it, has no such field."""
    _check(isinstance(said, list) and all(isinstance(key, str) for key in said), "disowned")
    try:
        return tuple(base64.b64decode(key, validate=True) for key in said)
    except ValueError:
        raise Corrupt("state of a join: disowned is invalid") from None


def _check(sound: bool, name: str) -> None:
    if not sound:
        raise Corrupt(f"state of a join: {name} is invalid")
