"""Define the interface between the engine and a library that computes dense graphs.

A backend opens a program for one version; the program accepts one artefact (the bytes of a compiled file) for each
bucket and returns executables for any dense weights. An executable is bound once to a session's buffers and from then
on only run. The engine sees nothing else of a backend.

New dense weights never cause a compilation on a request's path: Program.with_weights() is called in the background,
before the flip, and its cost depends on the backend (arguments are copied, frozen weights are packed again).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt, Expired, FreshetError, NotReady
from freshet_serving.processor.package import MATRIX, array_crc32, sha256

Matrix = NDArray[np.float32]
Weights = Mapping[str, Matrix]
Dims = tuple[int | None, ...]
"""Dimensions of a tensor; None for the rows of the bucket."""
ALIGNMENT = 64
"""In bytes. Every backend reads buffers with this alignment in place; some copy other buffers."""


WITHOUT_MEMORY = (
    "bad_alloc", "bad allocation", "could not allocate", "failed to allocate memory", "out of memory",
    "resource_exhausted",
)  # fmt: skip
"""Messages of libraries that lack memory, other than a MemoryError."""


@dataclass(frozen=True, slots=True)
class IoSpec:
    """Inputs and outputs of a dense graph's executables, all float32: dimensions by name."""

    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]

    @classmethod
    def of_matrix(cls, width: int, columns: Mapping[str, int]) -> IoSpec:
        """Return the spec of a graph of the matrix of features, `width` wide, from the columns of each output."""
        return cls({MATRIX: (None, width)}, {name: (None, n) for name, n in columns.items()})

    def input_shapes(self, bucket: int) -> dict[str, tuple[int, ...]]:
        return {name: sized(dims, bucket) for name, dims in self.inputs.items()}

    def output_shapes(self, bucket: int) -> dict[str, tuple[int, ...]]:
        return {name: sized(dims, bucket) for name, dims in self.outputs.items()}

    def allocate_inputs(self, bucket: int) -> dict[str, Matrix]:
        """Return aligned zeros by name."""
        return {name: aligned(shape) for name, shape in self.input_shapes(bucket).items()}

    def allocate_outputs(self, bucket: int) -> dict[str, Matrix]:
        """Return aligned zeros by name."""
        return {name: aligned(shape) for name, shape in self.output_shapes(bucket).items()}


def sized(dims: Dims, bucket: int) -> tuple[int, ...]:
    """Return a tensor's shape in a bucket of so many rows."""
    return tuple([bucket if n is None else n for n in dims])


def shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return tensors' shapes as an error prints them: x float32 [64, 10], u float32 [1, 8]."""
    return ", ".join(f"{name} float32 {list(shape)}" for name, shape in shapes.items())


class EndedRun(Expired):
    """Raised by a run that was ended before it was done."""


class EndableRun:
    """A bound run of a graph whose time depends on its inputs' values, such as one with a loop.

    Not an abstract class: the isinstance() of one takes longer than everything else that ending runs costs each run.
    """

    __slots__ = ()

    def __call__(self) -> None:
        """Compute all rows; raise EndedRun once end(True) is called."""
        raise NotImplementedError

    def end(self, now: bool) -> None:
        """End the run in progress, or take that back (now=False); safe from any thread."""
        raise NotImplementedError


class PartialRun:
    """A bound run that copies its inputs to a device, and of the next run only the first `rows` rows.

    All those of the bucket count unless `rows` is set before each run.
    """

    rows: int

    def __call__(self) -> None:
        raise NotImplementedError


class Executable(Protocol):
    """A dense graph with its weights, ready to run batches of `bucket` rows. Shared by all threads."""

    @property
    def bucket(self) -> int:
        """Number of rows in every run."""

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        """Prepare runs that read all `inputs` and write all `outputs`.

        Calling the result computes all rows, padding included, without the GIL, and keeps the arrays alive. A binding
        belongs to one thread at a time; bindings of one executable may run concurrently.

        Args:
            inputs: float32 by name, C-contiguous, in the shapes of the program's IoSpec.
            outputs: Likewise.

        Raises:
            ValueError: A buffer does not fit: a fault of the caller, not of a request.
        """


@dataclass(frozen=True, slots=True)
class Artefact:
    """One compiled file.

    Attributes:
        bucket: The bucket to run it at.
        data: Its bytes; empty to compile it here from `origin`.
        weights: Names of the weights it takes, in its order.
        precision: Precision that it computes in.
        target: Kind of device that it runs on.
        origin: The portable form that a backend of machine code keeps beside the compiled one.
        frozen: weights_hash() of the weights inside `data`; "" if they are not inside.
    """

    bucket: int
    data: bytes
    weights: Sequence[str]
    precision: str = "float32"
    target: str = "cpu"
    origin: bytes = b""
    frozen: str = ""

    @property
    def graph(self) -> str:
        """SHA-256 of what it computes, without its weights where it has a portable form."""
        return sha256(self.origin or self.data)


class Program(Protocol):
    """The buckets of one version on one backend."""

    def add(self, artefact: Artefact) -> None:
        """Add a bucket, or replace one. The program is unchanged if this raises.

        Raises:
            BadInput: The artefact has other inputs or outputs than the program.
            Corrupt: The bytes are not an artefact of this backend.
        """

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return the executables of all buckets with these weights, sharing what the backend can share.

        Executables returned earlier are unaffected.

        Args:
            weights: float32 by name; may hold more than the artefacts need. The arrays may change or be freed after the
                call.

        Raises:
            BadInput: Weights and artefacts do not belong together.
            Corrupt: The library refuses an artefact that add() accepted.
        """


class Backend(Protocol):
    """Opens programs. Construction imports the library; if that is missing it raises BadInput with what to install."""

    @property
    def name(self) -> str:
        """The backend's name, as in manifest.executables."""

    @property
    def library(self) -> str:
        """Library and version, such as "jaxlib 0.10.2": machine code is read only by the version that wrote it."""

    def open_program(self, spec: IoSpec, threads: int = 1, runs: int = 1) -> Program:
        """Return an empty program.

        Args:
            spec: Inputs and outputs of its executables.
            threads: Threads that one run may use.
            runs: Maximum number of concurrent runs; further ones only wait for one another.
        """


def missing(backend: str, library: str, extra: str) -> BadInput:
    """Return the error of a backend whose library is not installed, with the package extra that installs it."""
    from freshet_serving.processor.extras import how_to_install

    return BadInput(f"backend {backend}: the library {library} is not installed: {how_to_install(extra)}")


def refused(bucket: int, library: str, error: BaseException | None = None) -> FreshetError:
    """Return the error of an executable that a library refuses: NotReady for a lack of memory, else Corrupt."""
    if _lacks_memory(error):
        return NotReady(f"executable b{bucket}: there is not enough memory for {library}")
    return Corrupt(f"executable b{bucket}: refused by {library}")


def failed(bucket: int, library: str, error: BaseException) -> FreshetError:
    """Return the error of a run that a library could not finish: NotReady for a lack of memory, else FreshetError."""
    if _lacks_memory(error):
        return NotReady(f"{library} has not enough memory for a batch of {bucket} rows")
    return FreshetError(f"{library} failed on a batch of {bucket} rows")


def _lacks_memory(error: BaseException | None) -> bool:
    """Report whether an error, or one that led to it, is a lack of memory."""
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in WITHOUT_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def aligned(shape: tuple[int, ...]) -> Matrix:
    """Return zeros, float32, that start at a multiple of ALIGNMENT bytes."""
    nbytes = 4 * int(np.prod(shape, dtype=np.int64))
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(np.float32).reshape(shape)


def weights_hash(weights: Weights, names: Sequence[str]) -> str:
    """Identify weights that an executable may have frozen inside: 64 hex digits over names, shapes and checksums.

    It guards against mistakes, not against an attacker: checksums are CRC-32, at a gigabyte a second and without the
    GIL. Raises BadInput if a weight is missing.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        if name not in weights:
            raise BadInput(f"dense weight {name[:64]!r} is missing")
        digest.update(f"{name}\0{weights[name].shape}\0{array_crc32(weights[name])}\0".encode())
    return digest.hexdigest()


def check_buffers(bucket: int, spec: IoSpec, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> None:
    """Raise ValueError unless an executable with this spec can be bound to these buffers."""
    for kind, buffers, shapes in (
        ("inputs", inputs, spec.input_shapes(bucket)),
        ("outputs", outputs, spec.output_shapes(bucket)),
    ):
        if buffers.keys() != shapes.keys():
            raise ValueError(f"expected {kind} {sorted(shapes)}, got {sorted(buffers)}")
        for name, array in buffers.items():
            if array.dtype != np.float32 or array.shape != shapes[name] or not array.flags.c_contiguous:
                expected = f"contiguous float32 {shapes[name]}"
                raise ValueError(f"{name}: expected {expected}, got {array.dtype} {array.shape}")
    for name, array in outputs.items():
        if not array.flags.writeable:
            raise ValueError(f"{name}: expected a writeable buffer")


def check_weights(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise BadInput unless all names of `shapes` are in `weights` as float32 of that shape."""
    for name, shape in shapes.items():
        if name not in weights:
            raise BadInput(f"dense weight {name[:64]!r} is missing")
        array = weights[name]
        if array.dtype != np.float32 or array.shape != shape:
            array_shape = f"{array.dtype} {list(array.shape)}"
            raise BadInput(f"dense weight {name[:64]!r}: expected float32 {list(shape)}, got {array_shape}")
