"""Interface between the compiler and the compiling half of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from freshet_serving.processor.backends import Matrix
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.running.bounded import row_errors

MAX_ERROR = 2e-3


def check_outputs(got: Mapping[str, Matrix], expected: Mapping[str, Matrix], limit: float, where: str) -> float:
    """Return the largest difference from TensorFlow's outputs; raise BadInput if an output exceeds the limit."""
    worst = 0.0
    for name, array in got.items():
        error = float(row_errors({name: array}, expected).max(initial=0.0))
        if error > limit:
            raise BadInput(f"{where}: output {name!r} differs by {error:.3g} from TensorFlow's")
        worst = max(worst, error)
    return worst


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph compiled for one bucket; library, features and frozen are those of ExecutableEntry, for machine code.

    Attributes:
        weights: Names of the weights, in the executable's order.
        origin: The portable form that data was compiled from.
    """

    data: bytes
    suffix: str
    weights: list[str]
    library: str = ""
    features: list[str] = field(default_factory=list)
    frozen: str = ""
    origin: bytes = b""
    origin_suffix: str = ""

    @property
    def machine_code(self) -> bool:
        return bool(self.library)


class LoweredGraph(Protocol):
    """A dense graph in a backend's own language: lowered once, then compiled for each bucket."""

    backend: str
    target: str
    precision: str

    @property
    def definition(self) -> bytes:
        """All that determines a compiled file besides the bucket: graph, frozen weights, library and processor."""

    def compile(self, bucket: int) -> CompiledGraph: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile a graph.

    Attributes:
        target: "" for this machine.
        bound: Largest allowed error of scores in a lower precision (processor.running.bounded).
    """

    backend: str
    precision: str = "float32"
    target: str = ""
    bound: float = MAX_ERROR

    def __str__(self) -> str:
        precision = "" if self.precision == "float32" else f":{self.precision}"
        return f"{self.backend}{precision}" + (f"@{self.target}" if self.target else "")


class CompilerBackend(Protocol):
    """The compiling half of a backend, a module compiler.backends.<name>."""

    def variants(self) -> list[Variant]:
        """Return the variants that can be compiled on this machine; raise BadInput if the library is missing."""

    def lower(self, graph: object, variant: Variant) -> LoweredGraph:
        """Translate a DenseGraph into the backend's language; raise BadInput if it cannot express it."""
