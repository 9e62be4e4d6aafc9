"""One parser with its corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """run(data) raises FreshetError for what it refuses, and nothing else. share: of all cases."""

    name: str
    run: Callable[[bytes], object]
    corpus: tuple[bytes, ...]
    share: int = 1
