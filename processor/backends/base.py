"""The seam between the engine and whatever computes a dense graph.

A backend turns one artefact (the bytes of a compiled file) and the dense weights into executables; an
executable is bound once to the buffers of a session and then only run. Nothing else of a backend is visible
to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from processor.errors import BadInput

Matrix = NDArray[np.float32]
Weights = Mapping[str, Matrix]


class Executable(Protocol):
    """A dense graph with its weights, ready to run batches of `bucket` rows. Shared by all threads."""

    @property
    def bucket(self) -> int:
        """Rows of every run."""

    def bind(self, x: Matrix, outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        """Prepares runs that read `x` and write every one of `outputs`.

        x: float32 [bucket, width]; outputs: name -> float32 [bucket, columns]; all C-contiguous and kept
        alive by the returned call. Calling it computes all rows, padding included, without the GIL and
        without an allocation in Python. One binding belongs to one thread at a time; bindings of one
        executable may run concurrently. Raises ValueError when a buffer does not fit: that is a fault of the
        caller, not of a request.
        """


@dataclass(frozen=True, slots=True)
class Artefact:
    """One compiled file: the bucket to run it at, its bytes, and the names of the weights it takes."""

    bucket: int
    data: bytes
    weights: Sequence[str]


class Backend(Protocol):
    """Loads artefacts. `threads` is the number of threads that one run may use."""

    @property
    def name(self) -> str:
        """As in manifest.executables."""

    def load(
        self,
        data: bytes,
        weights: Weights,
        weight_names: Sequence[str],
        bucket: int,
        width: int,
        outputs: Mapping[str, int],
        threads: int = 1,
    ) -> Executable:
        """One artefact as an executable.

        weights: name -> float32; may hold more than weight_names. The arrays may change or go after the call.
        outputs: name -> columns. Raises BadInput when artefact, weights, width and outputs do not belong
        together, Corrupt when the bytes are no artefact of this backend.
        """

    def load_all(
        self,
        artefacts: Sequence[Artefact],
        weights: Weights,
        width: int,
        outputs: Mapping[str, int],
        threads: int = 1,
    ) -> list[Executable]:
        """All buckets of one generation, in the given order, sharing what the backend can share."""


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
