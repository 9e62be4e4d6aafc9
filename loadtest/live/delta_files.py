"""A folder of delta files, in the order of their steps, and the two ways to publish one."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import safe_open

SUFFIX = ".safetensors"


def pending(folder: Path, after: int) -> list[tuple[int, Path]]:
    """The folder's deltas of steps above `after`, ascending: 17.safetensors is of step 17; others are none."""
    named = ((path.name.removesuffix(SUFFIX), path) for path in folder.glob(f"*{SUFFIX}"))
    steps = [(int(stem), path) for stem, path in named if stem.isascii() and stem.isdigit()]
    return sorted((step, path) for step, path in steps if step > after)


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
