"""The seam between the engine and whatever computes a dense graph.

A backend opens a program for one version; the program takes one artefact (the bytes of a compiled file) for each
bucket and gives, for any dense weights, executables. An executable is bound once to the buffers of a session and then
only run. Nothing else of a backend is visible to the engine.

New dense weights never mean a new compile of the graph on the way of a request: Program.with_weights() is called in the
background, before the flip, and what it costs is each backend's own (weights as arguments are copied, frozen ones are
packed anew).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt, FreshetError, NotReady
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.package import array_crc32

Matrix = NDArray[np.float32]
Weights = Mapping[str, Matrix]
ALIGNMENT = 64
"""Bytes. Buffers that start at a multiple of it are read in place by every backend; others are copied by some."""


WITHOUT_MEMORY = ("bad_alloc", "bad allocation", "could not allocate", "out of memory", "resource_exhausted")
"""How libraries say that they lack memory, where it is no MemoryError."""


class Executable(Protocol):
    """A dense graph with its weights, ready to run batches of `bucket` rows. Shared by all threads."""

    @property
    def bucket(self) -> int:
        """Rows of every run."""

    def bind_buffers(self, x: Matrix, outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        """Prepares runs that read `x` and write every one of `outputs`.

        x: float32 [bucket, width]; outputs: name -> float32 [bucket, columns]; all C-contiguous and kept
        alive by the returned call. Calling it computes all rows, padding included, without the GIL. One binding
        belongs to one thread at a time; bindings of one executable may run concurrently. Raises ValueError when a
        buffer does not fit: that is a fault of the caller, not of a request.
        """


@dataclass(frozen=True, slots=True)
class Artefact:
    """One compiled file: the bucket to run it at, its bytes, and the names of the weights it takes, in its order.

    data: empty to have it compiled here from `origin`, the portable form that a backend of machine code keeps beside
    what it compiled. frozen: weights_hash() of the weights inside data, "" when they are not inside.
    """

    bucket: int
    data: bytes
    weights: Sequence[str]
    precision: str = "float32"
    target: str = "cpu"
    origin: bytes = b""
    frozen: str = ""


class Program(Protocol):
    """The buckets of one version on one backend."""

    def add(self, artefact: Artefact) -> None:
        """Takes one bucket, or a bucket's replacement. Raises BadInput when artefact, width and outputs do not belong
        together, Corrupt when the bytes are no artefact of this backend; the program is then as it was."""

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Every bucket with these weights, by bucket, sharing what the backend can share.

        weights: name -> float32; may hold more than the artefacts take. The arrays may change or go after the call;
        executables given before stay as they are. Raises BadInput when weights and artefacts do not belong together,
        Corrupt when the library refuses what add() has passed.
        """


class Backend(Protocol):
    """Opens programs. Construction imports the library, and raises BadInput that says what to install."""

    @property
    def name(self) -> str:
        """The backend's name, as in manifest.executables."""

    @property
    def library(self) -> str:
        """Library and version, such as "jaxlib 0.10.2": machine code is read by the very one that wrote it only."""

    def open_program(self, width: int, outputs: Mapping[str, int], threads: int = 1, runs: int = 1) -> Program:
        """outputs: name -> columns. threads: that one run may use. runs: that may be under way at once; more only
        wait for one another."""


def missing(backend: str, library: str, extra: str) -> BadInput:
    """The error of a backend whose library is not installed; one line that says what to install."""
    return BadInput(f"backend {backend}: the library {library} is not installed: {how_to_install(extra)}")


def refused(bucket: int, library: str, error: BaseException | None = None) -> FreshetError:
    """Why a library takes no executable: Corrupt, or NotReady where `error` says that it lacks memory, which passes."""
    said, short = error, False
    while said is not None and not short:
        short = isinstance(said, MemoryError) or any(word in str(said).lower() for word in WITHOUT_MEMORY)
        said = said.__cause__ or said.__context__
    if short:
        return NotReady(f"executable b{bucket}: there is not enough memory for {library}")
    return Corrupt(f"executable b{bucket}: refused by {library}")


def aligned(shape: tuple[int, ...]) -> Matrix:
    """Zeros, float32, starting at a multiple of ALIGNMENT bytes."""
    nbytes = 4 * int(np.prod(shape, dtype=np.int64))
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(np.float32).reshape(shape)


def weights_hash(weights: Weights, names: Sequence[str]) -> str:
    """Tells weights apart that an executable may have frozen inside: 64 hex digits over names, shapes and checksums.

    Against mistakes, not against an attacker: checksums are CRC-32, at a gigabyte a second and off the GIL.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        if name not in weights:
            raise BadInput(f"dense weight {name[:64]!r} is missing")
        digest.update(f"{name}\0{weights[name].shape}\0{array_crc32(weights[name])}\0".encode())
    return digest.hexdigest()


def check_buffers(
    bucket: int, width: int, columns: Mapping[str, int], x: Matrix, outputs: Mapping[str, Matrix]
) -> None:
    """Raises ValueError unless an executable of these dimensions can be bound to `x` and `outputs`."""
    if outputs.keys() != columns.keys():
        raise ValueError(f"outputs {sorted(columns)} wanted, got {sorted(outputs)}")
    wanted = {"x": (bucket, width), **{name: (bucket, n) for name, n in columns.items()}}
    for name, array in {"x": x, **outputs}.items():
        if array.dtype != np.float32 or array.shape != wanted[name] or not array.flags.c_contiguous:
            raise ValueError(f"{name}: contiguous float32 {wanted[name]} wanted, got {array.dtype} {array.shape}")
    for name, array in outputs.items():
        if not array.flags.writeable:
            raise ValueError(f"{name}: a writeable buffer wanted")


def check_weights(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises BadInput unless every name of `shapes` is in `weights` as float32 of that shape."""
    for name, shape in shapes.items():
        if name not in weights:
            raise BadInput(f"dense weight {name[:64]!r} is missing")
        array = weights[name]
        if array.dtype != np.float32 or array.shape != shape:
            got = f"{array.dtype} {list(array.shape)}"
            raise BadInput(f"dense weight {name[:64]!r}: float32 {list(shape)} wanted, got {got}")
