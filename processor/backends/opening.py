"""Open a version's executables: find which of them serve here, and why others do not.

The manifest lists, for each bucket, the preferred executable and then its replacements. They are tried in order; the
first that passes serves:

    features   this processor has what the code needs                    else: from a foreign processor
    library    it was compiled by the version that is installed          else: stale
    file       size, CRC-32, SHA-256; backend, bucket and source inside  else: damaged, tampered with, left over
    add()      the library accepts it

A refused executable is logged with the reason and never run. A bucket left without any is compiled again from the
portable form that the package keeps beside machine code: while the version is loaded, before it is offered to a
request, and without TensorFlow. Only if that fails, too, is the version refused.

A bucket in a lower precision has a float32 executable beside it, found in the same way, so that new dense weights may
switch it back (processor.backends.bounded).

A library is imported when an executable that needs it is tried, so a library that is not needed is never imported.

Backends by name.

A built-in backend is a module of this folder, named as the backend, that sets BACKEND to its class, a
processor.backends.base.Backend: there is no other list. Its library is imported when the class is called.

Plug-ins add backends by an entry point of the group `freshet.backends`: the name, and such a class. TensorFlow is one
of these, because this layer must not import it.

A capsule is the file format for machine code: a safetensors file of one tensor of bytes, and what it was compiled from.

Deserialising an executable runs library code over its bytes, and running it runs the bytes themselves. So before any
native parser sees one: the file's size and CRC-32 are those of the manifest (processor.repository.version), its SHA-256
is that of the manifest's entry, the file's bounds are valid, and backend, bucket and source inside are the entry's. A
capsule that was left over from another compilation, truncated, or edited by hand fails one of these checks.

This guards against damage and mix-ups. An attacker who can also write the manifest can have any code run: a model
repository is trusted like a folder of programs.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol

import numpy as np

from freshet_serving.processor.backends.base import Artefact, Backend, Matrix, Program
from freshet_serving.processor.backends.bounded import MAX_ROWS, ROWS, BoundedProgram, ScoreBound
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError
from freshet_serving.processor.machine import Machine, this_machine
from freshet_serving.processor.package import WHOLE, ExecutableEntry, Manifest, parse_tensors, write_tensors

FORMAT = "freshet/executable/1"
CODE = "executable"


def pack(code: bytes, backend: str, bucket: int, source: str) -> bytes:
    """Return the bytes of a capsule.

    Args:
        code: The machine code.
        backend: The backend's name.
        bucket: The executable's bucket.
        source: Hash of what the code was compiled from.
    """
    file = io.BytesIO()
    metadata = {"format": FORMAT, "backend": backend, "bucket": str(bucket), "source": source}
    write_tensors(file, {CODE: np.frombuffer(code, np.uint8)}, metadata)
    return file.getvalue()


def unpack(data: bytes, backend: str, bucket: int, source: str) -> bytes:
    """Return the code in a capsule.

    Args:
        data: The capsule's bytes.
        backend: The expected backend.
        bucket: The expected bucket.
        source: The expected hash of what the code was compiled from.

    Raises:
        Corrupt: The capsule is of another backend, bucket or source, or damaged.
    """
    what = f"executable b{bucket}"
    tensors = parse_tensors(np.frombuffer(data, np.uint8), what)
    wanted = {"format": FORMAT, "backend": backend, "bucket": str(bucket)}
    for key, value in wanted.items():
        if tensors.metadata.get(key) != value:
            raise Corrupt(f"{what}: expected {key} {value!r}, got {tensors.metadata.get(key, 'none')[:64]!r}")
    if tensors.metadata.get("source") != source:
        raise Corrupt(f"{what}: stale: compiled from another graph than the manifest's")
    if tensors.arrays.keys() != {CODE} or tensors.arrays[CODE].dtype != np.uint8:
        raise Corrupt(f"{what}: expected one tensor of bytes")
    return tensors.arrays[CODE].tobytes()


def sha256(data: bytes) -> str:
    """Return the digest of a whole capsule, as in its manifest entry; 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


GROUP = "freshet.backends"


@cache
def builtin() -> dict[str, type[Backend]]:
    """Return the backends of this folder, by name, in alphabetical order."""
    names = [module.name for module in iter_modules([str(Path(__file__).parent)])]
    modules = {name: import_module(f"{__package__}.{name}") for name in names}
    return {name: module.BACKEND for name, module in modules.items() if hasattr(module, "BACKEND")}


def load_backend(name: str) -> Backend:
    """Return the backend of that name; raise BadInput if it is unknown or its library is missing."""
    if name in builtin():
        return builtin()[name]()
    added = {point.name: point for point in entry_points(group=GROUP)}
    if name not in added:
        known = ", ".join(sorted({*builtin(), *added}))
        raise BadInput(f"backend: expected one of {known}, got {name[:64]!r}")
    try:
        backend: Backend = added[name].load()()
    except FreshetError:
        raise
    except Exception as error:
        raise BadInput(f"backend {name}: the plug-in is installed, but cannot be loaded") from error
    return backend


log = logging.getLogger("freshet.executables")


class Package(Protocol):
    """The files of a version that opening its executables needs."""

    @property
    def manifest(self) -> Manifest: ...

    def file(self, name: str) -> bytes:
        """Return a verified file; raises Corrupt."""


@dataclass(slots=True)
class OpenedPrograms:
    """The programs that serve a version's dense graph.

    Attributes:
        programs: One program per backend.
        chosen: The manifest's entry that serves each bucket.
        refused: Why other entries do not serve.
        machine: The machine that they run on.
        bounded: The program that checks buckets of a lower precision; None without any.
    """

    programs: list[Program]
    chosen: dict[int, ExecutableEntry]
    refused: list[str] = field(default_factory=list)
    machine: Machine = field(default_factory=this_machine)
    bounded: BoundedProgram | None = None

    def computes(self) -> dict[int, str]:
        """Return what serves each bucket with the newest weights: backend, precision, and why it is not a lower one."""
        back = self.bounded.back if self.bounded else {}
        return {bucket: back.get(bucket, _computes(entry)) for bucket, entry in sorted(self.chosen.items())}

    def cost(self, threads: int) -> dict[int, float]:
        """Return the seconds of one run per bucket as stored in the manifest.

        Empty unless they were measured on this machine, with one thread, for the executables that serve with the newest
        weights.
        """
        known = all(e.cost_us > 0 and e.measured_on == self.machine.name for e in self.chosen.values())
        if not known or threads != 1 or (self.bounded and self.bounded.back):
            return {}
        return {b: e.cost_us * 1e-6 for b, e in self.chosen.items()}


def executable_files(manifest: Manifest) -> set[str]:
    """Return all files of the manifest that are executables or that one is compiled from."""
    return {name for e in manifest.executables for name in (e.file, e.origin, e.rows) if name}


def open_programs(
    package: Package,
    width: int,
    outputs: Mapping[str, int],
    threads: int = 1,
    runs: int = 1,
    machine: Machine | None = None,
    load: Callable[[str], Backend] = load_backend,
    role: str = WHOLE,
) -> OpenedPrograms:
    """Open the programs that serve one part of a version's dense graph here.

    Args:
        package: The version's files.
        width: Columns of the part's input.
        outputs: Columns of each of its outputs, by name.
        threads: Threads that one run may use.
        runs: Maximum number of concurrent runs.
        machine: The machine; for tests.
        load: Loads a backend by name; for tests.
        role: The part of the dense graph (processor.package.roles).

    Raises:
        FreshetError: A bucket cannot be served at all; the error says why.
    """
    machine = machine or this_machine()
    manifest = package.manifest
    entries_of_role = [entry for entry in manifest.executables if entry.role == role]
    if not entries_of_role:
        raise Corrupt("manifest.executables: the version is not compiled; run `freshet compile`")
    backends: dict[str, Backend] = {}
    opened = OpenedPrograms([], {}, machine=machine)
    errors: dict[int, FreshetError] = {}
    refusals: dict[tuple[str, str], list[str]] = {}

    def serve(entry: ExecutableEntry, anew: bool, programs: dict[str, Program]) -> bool:
        """Add an entry's bucket to its backend's program; return False if it is refused."""
        name, bucket = entry.backend, entry.bucket
        try:
            _check_processor(entry, machine, anew)
            if name not in backends:
                backends[name] = load(name)
            artefact = _artefact(package, entry, backends[name], anew)
            program = programs.get(name) or backends[name].open_program(width, outputs, threads, runs)
            program.add(artefact)
        except FreshetError as error:
            errors.setdefault(bucket, error)
            opened.refused.append(f"{name}-{entry.target} {entry.precision} b{bucket}: {error}")
            # The same reason for all buckets, as where a GPU is missing, is one line of the log.
            refusals.setdefault((f"{name}-{entry.target} {entry.precision}", str(error)), []).append(f"b{bucket}")
            return False
        programs[name] = program
        return True

    def first(entries: Sequence[ExecutableEntry], programs: dict[str, Program]) -> ExecutableEntry | None:
        """Return the first of a bucket's entries that serves."""
        ways = ((entry, anew) for anew in (False, True) for entry in entries if entry.origin or not anew)
        return next((entry for entry, anew in ways if serve(entry, anew, programs)), None)

    by_bucket: dict[int, list[ExecutableEntry]] = {}
    for entry in entries_of_role:
        by_bucket.setdefault(entry.bucket, []).append(entry)
    programs: dict[str, Program] = {}
    exact: dict[str, Program] = {}
    bounded: dict[int, tuple[ExecutableEntry, ExecutableEntry]] = {}
    for bucket, entries in sorted(by_bucket.items()):
        chosen = first(entries, programs)
        if chosen is None:
            raise errors[bucket]
        opened.chosen[bucket] = chosen
        if chosen.rows and (instead := first([e for e in entries if e.precision == "float32"], exact)):
            bounded[bucket] = chosen, instead
    for (name, why), buckets in refusals.items():
        log.warning("%s version %d: %s %s refused: %s", manifest.model, manifest.version, name, ", ".join(buckets), why)
    opened.programs = list(programs.values())
    if bounded:
        told, bounds = f"{manifest.model} version {manifest.version}", _bounds(package, width, bounded)
        opened.bounded = BoundedProgram(told, opened.programs, list(exact.values()), bounds, outputs)
        opened.programs = [opened.bounded]
    return opened


def _bounds(
    package: Package, width: int, bounded: Mapping[int, tuple[ExecutableEntry, ExecutableEntry]]
) -> dict[int, ScoreBound]:
    """Return the score bound of each bucket, given its entry and the float32 one; raise Corrupt for bad rows."""
    rows: dict[str, Matrix] = {}
    for entry, _ in bounded.values():
        if entry.rows not in rows:
            arrays = parse_tensors(np.frombuffer(package.file(entry.rows), np.uint8), entry.rows).arrays
            x = arrays.get(ROWS)
            if x is None or x.dtype != np.float32 or x.ndim != 2 or x.shape[1] != width or not 1 <= len(x) <= MAX_ROWS:
                raise Corrupt(f"{entry.rows}: expected {ROWS!r} float32 [1 to {MAX_ROWS}, {width}]")
            rows[entry.rows] = x
    return {
        bucket: ScoreBound(_computes(entry), _computes(instead), rows[entry.rows], entry.max_error)
        for bucket, (entry, instead) in bounded.items()
    }


def _computes(entry: ExecutableEntry) -> str:
    return f"{entry.backend} {entry.precision}"


def _check_processor(entry: ExecutableEntry, machine: Machine, anew: bool) -> None:
    """Raise BadInput for code that this processor cannot run or, with `anew`, for a precision that it lacks."""
    computes = {"bfloat16": machine.bfloat16, "int8": bool(machine.int8)}
    if anew and not computes.get(entry.precision, True):
        raise BadInput(f"foreign: this processor does not compute in {entry.precision}")
    lacking = [] if anew else machine.lacks(f for f in entry.features if not f.startswith("cuda"))
    if lacking:
        raise BadInput(f"foreign: compiled for a processor with {', '.join(lacking)[:256]}, which this one lacks")


def _artefact(package: Package, entry: ExecutableEntry, backend: Backend, anew: bool) -> Artefact:
    """Return the entry's bytes, checked, or raise why they must not be run here; with `anew` only its portable form."""
    if anew:
        origin = package.file(entry.origin)
        return Artefact(entry.bucket, b"", entry.weights, entry.precision, entry.target, origin)
    if entry.library and entry.library != backend.library:
        raise BadInput(f"stale: compiled by {entry.library[:64]}, {backend.library} is installed")
    data = package.file(entry.file)
    if entry.sha256:
        if sha256(data) != entry.sha256:
            raise Corrupt(f"{entry.file}: does not match its SHA-256")
        data = unpack(data, entry.backend, entry.bucket, entry.source)
    origin = package.file(entry.origin) if entry.origin and entry.frozen else b""
    return Artefact(entry.bucket, data, entry.weights, entry.precision, entry.target, origin, entry.frozen)
