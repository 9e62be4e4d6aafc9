"""A folder of delta files, in the order of their steps, and the two ways to publish one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class PendingDelta:
    """One delta, known by the step in its file's name: 17.safetensors."""

    step: int
    path: Path


def pending(folder: Path, after: int) -> list[PendingDelta]:
    """The folder's deltas of steps above `after`, ascending; names that are no step are not deltas."""
    files = []
    for path in folder.iterdir():
        stem = path.name.removesuffix(SUFFIX)
        if path.name.endswith(SUFFIX) and stem.isascii() and stem.isdigit() and int(stem) > after:
            files.append(PendingDelta(int(stem), path))
    return sorted(files, key=lambda f: f.step)


def generation_of(path: Path) -> str:
    """The generation that the delta leads to, from its header: "3.17"."""
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    return f"{metadata['version']}.{metadata['step']}"


def publish(data: bytes, folder: Path, step: int) -> None:
    """Puts a delta into a version's deltas folder as a trainer does: written aside, made durable, renamed."""
    aside = folder / f".{step}.loadtest.tmp"
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(folder / f"{step}{SUFFIX}")
