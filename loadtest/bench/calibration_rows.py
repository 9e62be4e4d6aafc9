"""Rows of practice for a benchmark's model, and what `freshet compile` chooses with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from freshet_serving.processor.package import undivided_name
from freshet_serving.processor.repository.version import WARMUP, VersionReader
from freshet_serving.processor.repository.version_writer import add_file
from freshet_serving.processor.repository.warmup import dump_warmup
from loadtest.load.launch import run_freshet


def compile_with_practice(folder: Path, requests: Sequence[Mapping[str, Any]], precision: str = "auto") -> str:
    """Puts requests into a version as recorded ones are, and compiles it; what was chosen, by bucket."""
    add_file(VersionReader(folder), WARMUP, dump_warmup([dict(request) for request in requests]))
    run_freshet("compile", str(folder), "--precision", precision)
    return chosen(folder)


def chosen(folder: Path) -> str:
    """What a version runs, by bucket: of what is listed the first serves."""
    manifest = VersionReader(folder).manifest
    listed = [e for e in reversed(manifest.executables) if e.subgraph == undivided_name(manifest)]
    first = {e.bucket: f"{e.backend} {e.precision}" for e in listed}
    return ", ".join(f"{bucket}: {first[bucket]}" for bucket in sorted(first))
