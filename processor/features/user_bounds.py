"""Bounds of how much older than its reply the user's part may be, and its type.

Loaded with the first model that has any: [model.NAME] user_state. Without bounds the part is that of the reply's
generation; without a type it is kept as it was computed, as float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from freshet_serving.processor.errors import BadInput

MAX_STEPS, MAX_AGE_S = 1 << 31, 86400.0
DTYPES = FLOAT32, FLOAT16 = "float32", "float16"


@dataclass(frozen=True, slots=True)
class OldestUsers:
    """A model's bounds; without the first two the user's part is that of the reply's generation.

    Attributes:
        steps: Most steps by which the generation of the user's part may be older than that of the reply; None for any.
        age_s: Most seconds since it was computed; None for as long as it is kept.
        dtype: One of DTYPES, the type that user parts are kept in; None for FLOAT32.
    """

    steps: int | None = None
    age_s: float | None = None
    dtype: str | None = None

    @property
    def spelled(self) -> dict[str, int | float | str]:
        """The bounds as the operator writes them."""
        all_of = {"steps": self.steps, "age_s": self.age_s, "dtype": self.dtype}
        return {key: value for key, value in all_of.items() if value is not None}

    @property
    def bounded(self) -> bool:
        """True if the user's part may be of an older generation."""
        return self.steps is not None or self.age_s is not None

    @property
    def rounded(self) -> bool:
        """True if the user's part is not kept as it was computed."""
        return self.dtype == FLOAT16

    @classmethod
    def parse(cls, raw: Any, where: str) -> OldestUsers:
        """Parse a section with a bound, both, or a type; raise BadInput that names `where`."""
        if not isinstance(raw, dict) or not raw or not raw.keys() <= {"steps", "age_s", "dtype"}:
            raise BadInput(
                f"{where}: expected 'exact', or a section of 'steps', 'age_s', 'dtype' or several of them, "
                f"got {str(raw)[:40]!r}"
            )
        steps, age_s, dtype = raw.get("steps", 1), raw.get("age_s", 1.0), raw.get("dtype", FLOAT32)
        if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
            raise BadInput(f"{where}.steps: expected 1 to {MAX_STEPS}, got {str(steps)[:40]!r}")
        if type(age_s) not in (int, float) or not 0 < age_s <= MAX_AGE_S:
            raise BadInput(
                f"{where}.age_s: expected more than 0, at most {MAX_AGE_S:g} seconds, got {str(age_s)[:40]!r}"
            )
        if dtype not in DTYPES:
            raise BadInput(f"{where}.dtype: expected {FLOAT32!r} or {FLOAT16!r}, got {str(dtype)[:40]!r}")
        return cls(raw.get("steps"), None if "age_s" not in raw else float(age_s), raw.get("dtype"))


class UserBounds:
    """The bounds of one request, and what the user's part was.

    `step` is that of the part's generation, where that is not the reply's or the part was kept rounded; None else. Each
    try to answer the request writes it; it is final when the reply is there.
    """

    __slots__ = ("_whole", "oldest", "step")

    def __init__(self, oldest: OldestUsers, whole: UserBounds | None = None) -> None:
        """Take the bounds; of a part of a request, what is used is noted in the bounds of the `whole` as well."""
        self.oldest, self._whole = oldest, whole
        self.step: int | None = None

    def used(self, step: int) -> None:
        self.step = step
        if self._whole is not None:
            self._whole.step = step

    def exact(self) -> UserBounds | None:
        """Return the bounds of a part of this request that reads no older user part; None if it needs none."""
        oldest = self.oldest
        return UserBounds(replace(oldest, steps=None, age_s=None), self) if oldest.rounded else None
