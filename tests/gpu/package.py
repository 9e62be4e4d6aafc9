"""Versions in a bundle: their executables listed anew, for another device or another backend."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import ExecutableEntry, File
from freshet_serving.processor.package.tensors import crc32
from freshet_serving.processor.repository.version import MANIFEST, VersionReader
from freshet_serving.processor.running.opening import executable_files

MODEL = "bench"
DIVIDED = "clicks"
"""A model whose requests are divided into the user's part and the candidates' part."""
HISTORIES = "histories"
"""A network over histories, which are an input beside the matrix of the batch."""
ELSEWHERE = "another machine's"


def folder_of(repository: Path, model: str = MODEL) -> Path:
    return repository / model / "1"


def relist(folder: Path, executables: Sequence[ExecutableEntry], named: Manifest | None = None) -> Manifest:
    """Writes a manifest with these executables, whose files are there. named: a manifest that has them already."""
    before = VersionReader(folder).manifest
    named = named or replace(before, executables=list(executables))
    files = {name: file for name, file in before.files.items() if name not in executable_files(before)}
    for name in executable_files(named):
        data = (folder / name).read_bytes()
        files[name] = File(len(data), crc32(data))
    manifest = replace(named, files=files)
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return manifest


def made_ahead(entry: ExecutableEntry) -> bool:
    """Whether it is code for a GPU, made where there was none."""
    return entry.target.startswith("cuda")


def only(bundle: Path, repository: Path, backend: str, target: str, ahead: bool, model: str, largest: int) -> None:
    """Copies the bundle's version, for one backend to serve it alone.

    Args:
        target: Compiled for it while it is loaded, from its portable form; "" for as it is.
        ahead: By the machine code for a target that was made without it, as it is.
        largest: The largest batch size.
    """
    folder = folder_of(repository, model)
    shutil.copytree(folder_of(bundle / "repository", model), folder)
    listed = [e for e in VersionReader(folder).manifest.executables if e.bucket <= largest]
    entries = [e for e in listed if e.backend == backend and made_ahead(e) == ahead]
    if ahead:
        entries = [entry for entry in entries if entry.target == target]
    elif target:
        entries = [replace(e, target=target, features=[], library=e.library and ELSEWHERE) for e in entries]
    relist(folder, entries)
