"""Open a version's executables: find which of them serve here, and why others do not.

For each bucket the manifest lists the preferred executable and its replacements. The first that passes serves:

    features   this processor has what the code needs                    else: from a foreign processor
    library    it was compiled by the version that is installed          else: stale
    file       size, CRC-32, SHA-256; backend, bucket and source inside  else: damaged, tampered with, left over
    add()      the library accepts it

A refused executable is logged with the reason and never run. A bucket left without any is compiled again from the
portable form beside the machine code: while the version is loaded, and without TensorFlow. So is one whose GPU is here
but whose library is another. Only if that fails, too, is the version refused.

A bucket in a lower precision has a float32 executable beside it, found in the same way, so that new dense weights may
switch it back (processor.running.bounded).

A library is imported when an executable that needs it is tried.

Deserialising an executable runs library code over its bytes, and running it runs the bytes themselves. So before any
native parser sees one: the file's size and CRC-32 are those of the manifest (processor.repository.version), its SHA-256
is that of the manifest's entry, the file's bounds are valid, and backend, bucket and source inside are the entry's.

This guards against damage and mix-ups. An attacker who can also write the manifest can have any code run: a model
repository is trusted like a folder of programs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import (
    Artefact,
    Backend,
    IoSpec,
    Matrix,
    Program,
    load_backend,
    sized,
)
from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError
from freshet_serving.processor.machine import Machine, this_machine
from freshet_serving.processor.package import (
    FORMAT_1,
    SCORE,
    ExecutableEntry,
    Manifest,
    Subgraph,
    batch_symbol,
    parse_tensors,
    sha256,
)

if TYPE_CHECKING:
    from freshet_serving.processor.running.bounded import BoundedProgram, ScoreBound

log = logging.getLogger("freshet.executables")


class Package(Protocol):
    """The files of a version that opening its executables needs."""

    @property
    def manifest(self) -> Manifest: ...

    def file(self, name: str) -> bytes:
        """Return a verified file; raises Corrupt."""


@dataclass(slots=True)
class OpenedPrograms:
    """The programs that serve a version's dense graph, one per backend.

    Attributes:
        chosen: The manifest's entry that serves each bucket.
        refused: Why other entries do not serve.
        bounded: The program that checks buckets of a lower precision; None without any.
        graphs: What each executable computes but for its weights, in the manifest's order.
    """

    programs: list[Program]
    chosen: dict[int, ExecutableEntry]
    refused: list[str] = field(default_factory=list)
    machine: Machine = field(default_factory=this_machine)
    bounded: BoundedProgram | None = None
    graphs: list[str] = field(default_factory=list)

    def computes(self) -> dict[int, str]:
        """Return what serves each bucket with the newest weights: backend, precision, and why it is not a lower one."""
        back = self.bounded.back if self.bounded else {}
        return {bucket: back.get(bucket, _computes(entry)) for bucket, entry in sorted(self.chosen.items())}

    def cost(self, threads: int) -> dict[int, float]:
        """Return the manifest's seconds of one run per bucket.

        Empty unless measured on this machine, with one thread, for the executables that serve with the newest weights.
        """
        measured = all(e.cost_us > 0 and e.measured_on == self.machine.name for e in self.chosen.values())
        if not measured or threads != 1 or (self.bounded and self.bounded.back):
            return {}
        return {b: e.cost_us * 1e-6 for b, e in self.chosen.items()}


def executable_files(manifest: Manifest) -> set[str]:
    """Return all files of the manifest that are executables or that one is compiled from."""
    return {name for e in manifest.executables for name in (e.file, e.origin, e.rows) if name}


def open_programs(
    package: Package,
    spec: IoSpec,
    threads: int = 1,
    runs: int = 1,
    machine: Machine | None = None,
    load: Callable[[str], Backend] = load_backend,
    subgraph: str = SCORE,
) -> OpenedPrograms:
    """Open the programs that serve one subgraph of a version here; raise FreshetError if a bucket cannot be served.

    Args:
        threads: Threads that one run may use.
        runs: Maximum number of concurrent runs.
        machine, load: The machine, and what loads a backend by name; for tests.
    """
    machine = machine or this_machine()
    manifest = package.manifest
    listed = [entry for entry in manifest.executables if entry.subgraph == subgraph]
    # The adapter for packages of format 1 stands around the programs: the rest opens what their executables are.
    package_spec, beside = spec, 0
    if manifest.format == FORMAT_1 and subgraph == SCORE:
        from freshet_serving.processor.package import side_columns
        from freshet_serving.processor.running.side_columns import SideColumns, one_matrix

        if beside := side_columns(manifest):
            spec = one_matrix(package_spec, beside)
    if not listed:
        raise Corrupt("manifest.executables: the version is not compiled; run `freshet compile`")
    backends: dict[str, Backend] = {}
    opened = OpenedPrograms([], {}, machine=machine)
    errors: dict[int, FreshetError] = {}
    refusals: dict[tuple[str, str], dict[str, bool]] = {}

    def serve(entry: ExecutableEntry, anew: bool, programs: dict[str, Program]) -> bool:
        """Add an entry's bucket to its backend's program; return False if it is refused."""
        name, bucket = entry.backend, entry.bucket
        try:
            _check_processor(entry, machine, anew)
            if name not in backends:
                backends[name] = load(name)
            artefact = _artefact(package, entry, backends[name], anew)
            program = programs.get(name) or backends[name].open_program(spec, threads, runs)
            program.add(artefact)
        except FreshetError as error:
            errors.setdefault(bucket, error)
            # The same reason for all buckets, as where a GPU is missing, is one line of the log.
            refusals.setdefault((f"{name}-{entry.target} {entry.precision}", str(error)), {})[f"b{bucket}"] = True
            return False
        programs[name] = program
        opened.graphs.append(f"{name} {entry.target} {entry.precision} b{bucket} {artefact.graph}")
        return True

    def first(entries: Sequence[ExecutableEntry], programs: dict[str, Program]) -> ExecutableEntry | None:
        return next((entry for entry, anew in _ways(entries) if serve(entry, anew, programs)), None)

    by_bucket: dict[int, list[ExecutableEntry]] = {}
    for entry in listed:
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
        opened.refused += [f"{name} {bucket}: {why}" for bucket in buckets]
        log.warning("%s version %d: %s %s refused: %s", manifest.model, manifest.version, name, ", ".join(buckets), why)
    opened.programs = list(programs.values())
    if bounded:
        # Loaded with the first version that serves a lower precision, here and below.
        from freshet_serving.processor.running.bounded import BoundedProgram

        label, bounds = f"{manifest.model} version {manifest.version}", _bounds(package, spec, bounded)
        opened.bounded = BoundedProgram(label, opened.programs, list(exact.values()), bounds, spec)
        opened.programs = [opened.bounded]
    if beside:
        opened.programs = [SideColumns(program, package_spec, beside) for program in opened.programs]
    return opened


def io_spec(name: str, graph: Subgraph) -> IoSpec:
    """Return the inputs and outputs of a subgraph's executables."""

    def dims(symbolic: Sequence[Any]) -> tuple[int | None, ...]:
        # A run of `score` has one request, so its dimension of requests is 1.
        return tuple([None if n == batch_symbol(name) else n if isinstance(n, int) else 1 for n in symbolic])

    return IoSpec({i.name: dims(i.dims) for i in graph.inputs}, {o.name: dims(o.dims) for o in graph.outputs})


def _bounds(
    package: Package, spec: IoSpec, bounded: Mapping[int, tuple[ExecutableEntry, ExecutableEntry]]
) -> dict[int, ScoreBound]:
    """Return the score bound of each bucket, given its entry and the float32 one; raise Corrupt for bad rows."""
    from freshet_serving.processor.running.bounded import ScoreBound

    rows: dict[str, dict[str, Matrix]] = {}
    for entry, _ in bounded.values():
        if entry.rows not in rows:
            arrays = parse_tensors(np.frombuffer(package.file(entry.rows), np.uint8), entry.rows).arrays
            rows[entry.rows] = {name: _checked_rows(arrays.get(name), name, spec, entry.rows) for name in spec.inputs}
            if len({len(rows[entry.rows][name]) for name, dims in spec.inputs.items() if None in dims}) != 1:
                raise Corrupt(f"{entry.rows}: expected as many rows in every input")
    return {
        bucket: ScoreBound(_computes(entry), _computes(instead), rows[entry.rows], entry.max_error)
        for bucket, (entry, instead) in bounded.items()
    }


def _checked_rows(array: NDArray[Any] | None, name: str, spec: IoSpec, file: str) -> Matrix:
    """Return one input of the rows to compare on; raise Corrupt unless it fits the spec."""
    from freshet_serving.processor.running.bounded import MAX_ROWS

    rows = len(array) if array is not None and array.ndim else 0
    shape = sized(spec.inputs[name], rows)
    if array is None or array.dtype != np.float32 or array.shape != shape or not 1 <= rows <= MAX_ROWS:
        raise Corrupt(f"{file}: expected {name!r} float32 {list(sized(spec.inputs[name], MAX_ROWS))} or fewer rows")
    return array


def _ways(entries: Sequence[ExecutableEntry]) -> Iterator[tuple[ExecutableEntry, bool]]:
    """Yield a bucket's entries as they are to be tried, each with whether to compile it anew.

    Compiling a processor's entry anew is the last resort. A GPU's is compiled anew before the processor's that follow
    it are tried: another version of the library must not leave the GPU idle.
    """
    for gpu, run in groupby(entries, lambda e: e.target.startswith("cuda-")):
        alike = list(run)
        yield from ((entry, False) for entry in alike)
        yield from ((entry, True) for entry in alike if gpu and entry.origin)
    yield from ((entry, True) for entry in entries if entry.origin and not entry.target.startswith("cuda-"))


def _computes(entry: ExecutableEntry) -> str:
    return f"{entry.backend} {entry.precision}"


def _check_processor(entry: ExecutableEntry, machine: Machine, anew: bool) -> None:
    """Raise BadInput for code that this processor cannot run or, with `anew`, for a precision that it lacks."""
    computes = {"bfloat16": machine.bfloat16, "int8": bool(machine.int8)}
    if anew and not entry.target.startswith("cuda") and not computes.get(entry.precision, True):
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
        from freshet_serving.processor.backends import unpack

        if sha256(data) != entry.sha256:
            raise Corrupt(f"{entry.file}: does not match its SHA-256")
        data = unpack(data, entry.backend, entry.bucket, entry.source)
    try:
        origin = package.file(entry.origin) if entry.origin else b""
    except FreshetError:
        # Without frozen weights it only tells which programs are the same.
        if entry.frozen:
            raise
        origin = b""
    return Artefact(entry.bucket, data, entry.weights, entry.precision, entry.target, origin, entry.frozen)
