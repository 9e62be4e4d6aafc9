"""Say how closely two computations of one model must agree: as closely as the model's least precise type allows.

Two runtimes add in different orders, and fuse different operators. In float32 that is far below the bounds below; in
float16 and bfloat16 each operator rounds to a few digits, so that the last of them differ in a faithful copy too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

EPSILONS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
STEPS = 8


@dataclass(frozen=True, slots=True)
class Precision:
    """The least precise type that a model computes with: "float16" or "bfloat16"; "" for float32 and above."""

    dtype: str = ""

    @classmethod
    def of(cls, dtypes: Iterable[str]) -> Precision:
        names = set(dtypes)
        return cls(next((name for name in EPSILONS if name in names), ""))

    def agree(self, got: Any, expected: Any, relative: float, absolute: float) -> bool:
        """Report whether two computations of an output agree, within tolerances in float32; NaN equals NaN."""
        if self.dtype:
            relative = absolute = STEPS * EPSILONS[self.dtype]
            # A small sum of large terms has their error.
            finite = np.abs(expected[np.isfinite(expected)])
            absolute *= max(1.0, float(finite.max(initial=0)))
        return np.allclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)

    @property
    def advice(self) -> str:
        return f", which is more than {self.dtype} explains: export the model in float32" if self.dtype else ""
