"""The seam between compile_graph and a backend's compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Lowered(Protocol):
    """A dense graph in a backend's own language: lowered once, then compiled for each bucket."""

    backend: str
    target: str

    @property
    def definition(self) -> bytes:
        """All that a compiled file follows from besides the bucket; equal for equal graphs only."""

    def compile(self, bucket: int, folder: Path) -> tuple[str, list[str]]:
        """Writes the artefact for `bucket` rows into `folder`; returns its name and the weights it takes."""
