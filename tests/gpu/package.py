"""Versions in a bundle: their executables listed anew, for another device or another backend."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from freshet_serving.processor.package.manifest import ExecutableEntry, File, Manifest
from freshet_serving.processor.package.tensors import crc32
from freshet_serving.processor.repository.version import MANIFEST, VersionReader
from freshet_serving.processor.running.opening import executable_files

MODEL = "bench"
ELSEWHERE = "another machine's"


def folder_of(repository: Path) -> Path:
    return repository / MODEL / "1"


def relist(folder: Path, executables: Sequence[ExecutableEntry]) -> Manifest:
    """Writes a manifest with these executables, whose files are there."""
    before = VersionReader(folder).manifest
    named = replace(before, executables=list(executables))
    files = {name: file for name, file in before.files.items() if name not in executable_files(before)}
    for name in executable_files(named):
        data = (folder / name).read_bytes()
        files[name] = File(len(data), crc32(data))
    manifest = replace(named, files=files)
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return manifest


def made_ahead(entry: ExecutableEntry) -> bool:
    """Whether it is machine code for a GPU, made where there was none."""
    return entry.backend == "xla" and entry.target.startswith("cuda")


def only(bundle: Path, repository: Path, backend: str, target: str = "", ahead: bool = False) -> Path:
    """A copy of the bundle's version that one backend serves alone. target: compiled for it while it is loaded, from
    its portable form; "" for as it is. ahead: by the machine code for a target that was made without it, as it is."""
    folder = folder_of(repository)
    shutil.copytree(folder_of(bundle / "repository"), folder)
    manifest = VersionReader(folder).manifest
    entries = [e for e in manifest.executables if e.backend == backend and made_ahead(e) == ahead]
    if ahead:
        entries = [entry for entry in entries if entry.target == target]
    elif target:
        entries = [replace(e, target=target, features=[], library=e.library and ELSEWHERE) for e in entries]
    relist(folder, entries)
    return repository
