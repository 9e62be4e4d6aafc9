"""Bounds of how much older than its reply the user's part may be that a request is answered with.

Loaded with the first model that has any: [model.NAME] user_state. Without bounds the part is that of the reply's
generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.errors import BadInput

MAX_STEPS, MAX_AGE_S = 1 << 31, 86400.0


@dataclass(frozen=True, slots=True)
class OldestUsers:
    """A model's bounds.

    Attributes:
        steps: Most steps by which the generation of the user's part may be older than that of the reply; None for any.
        age_s: Most seconds since it was computed; None for as long as it is kept.
    """

    steps: int | None = None
    age_s: float | None = None

    @property
    def spelled(self) -> dict[str, int | float]:
        """The bounds as the operator writes them."""
        both = {"steps": self.steps, "age_s": self.age_s}
        return {key: most for key, most in both.items() if most is not None}

    @classmethod
    def parse(cls, raw: Any, where: str) -> OldestUsers:
        """Parse a section with one bound or both; raise BadInput.

        Args:
            raw: The parsed JSON or TOML.
            where: Its name, for messages.
        """
        if not isinstance(raw, dict) or not raw or not raw.keys() <= {"steps", "age_s"}:
            raise BadInput(
                f"{where}: expected 'exact', or a section of 'steps', 'age_s' or both, got {str(raw)[:40]!r}"
            )
        steps, age_s = raw.get("steps", 1), raw.get("age_s", 1.0)
        if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
            raise BadInput(f"{where}.steps: expected 1 to {MAX_STEPS}, got {str(steps)[:40]!r}")
        if type(age_s) not in (int, float) or not 0 < age_s <= MAX_AGE_S:
            raise BadInput(
                f"{where}.age_s: expected more than 0, at most {MAX_AGE_S:g} seconds, got {str(age_s)[:40]!r}"
            )
        return cls(raw.get("steps"), None if "age_s" not in raw else float(age_s))


class UserBounds:
    """The bounds of one request, and how old the user's part was.

    Attributes:
        oldest: The model's bounds.
        step: The step of the generation that the user's part is of, where that is not the reply's; None else. Each try
            to answer the request writes it; it is final when the reply is there.
    """

    __slots__ = ("oldest", "step")

    def __init__(self, oldest: OldestUsers) -> None:
        self.oldest = oldest
        self.step: int | None = None
