"""Executables of one bucket, opened apart from those that answer requests, from the same files.

Who owns what: used by one thread at a time. What is opened belongs to nobody else: no session's buffers, no replica's
frame, no pin. With several workers it is the supervisor that opens it, which has no executable of its own.

Which file serves a bucket is settled as for a replica (processor.backends.opening), by the same checks in the same
order; so is whether float32 stands in for a lower precision with these weights.

What it costs: the memory of a few buckets of a version, KEPT of them, and of the weights that are packed into them, two
sets a bucket; given up with the version. The first explanation of a version loads the backend's library where this
process has not got it.

Refused: running on a session's buffers, or in a worker (a request would wait for an explanation), and opening every
bucket (a second for a package of thirteen).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from processor.backends.base import Executable, Matrix, Weights
from processor.backends.bounded import outputs_of
from processor.backends.opening import Opened, Package, open_programs
from processor.package.manifest import WHOLE, ExecutableEntry, Manifest
from processor.versions.served_version import ServedVersion

KEPT, WEIGHTS_KEPT = 3, 2


@dataclass(frozen=True, slots=True, eq=False)
class SpareExecutable:
    """An executable that no request is answered by. entry: the manifest's. computes: backend and precision, and why it
    is no lower one."""

    executable: Executable
    entry: ExecutableEntry
    computes: str
    outputs: Mapping[str, int]

    def scores(self, x: Matrix) -> dict[str, Matrix]:
        """Its outputs for rows x [n, width], bucket by bucket."""
        return outputs_of(self.executable, x, self.outputs)


@dataclass(slots=True)
class _Bucket:
    opened: Opened
    packed: list[tuple[Weights, SpareExecutable]] = field(default_factory=list)


class SpareExecutables:
    """Spare executables of any version, by bucket and dense weights."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[ServedVersion, dict[int, _Bucket]] = weakref.WeakKeyDictionary()

    def get(self, version: ServedVersion, bucket: int, dense: Weights) -> SpareExecutable:
        """A bucket's executable with these weights; raises FreshetError where it cannot be had."""
        kept = self._kept.setdefault(version, {})
        manifest = version.manifest
        outputs = {o.name: o.columns for o in manifest.outputs}
        found = kept.pop(bucket, None)
        if found is None:
            found = _Bucket(open_programs(_OneBucket(version.files, bucket), manifest.width, outputs))
        kept[bucket] = found
        while len(kept) > KEPT:
            del kept[next(iter(kept))]
        for weights, spare in found.packed:
            if _same(weights, dense):
                return spare
        (program,) = found.opened.programs
        executable = program.with_weights(dense)[bucket]
        spare = SpareExecutable(executable, found.opened.chosen[bucket], found.opened.computes()[bucket], outputs)
        found.packed = [*found.packed[1 - WEIGHTS_KEPT :], (dense, spare)]
        return spare


class _OneBucket:
    """A package whose manifest lists the executables of one bucket of the whole dense graph."""

    def __init__(self, files: Package, bucket: int) -> None:
        self._files = files
        mine = [e for e in files.manifest.executables if e.bucket == bucket and e.role == WHOLE]
        self.manifest: Manifest = replace(files.manifest, executables=mine)

    def file(self, name: str) -> bytes:
        return self._files.file(name)


def _same(some: Weights, others: Weights) -> bool:
    """Whether these are the very same arrays."""
    return some is others or (some.keys() == others.keys() and all(a is others[name] for name, a in some.items()))
