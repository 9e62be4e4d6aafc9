"""Interface between the compiler and the compiling half of a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

MAX_ERROR = 2e-3


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph compiled for one bucket.

    Attributes:
        suffix: Suffix of the file's name.
        weights: Names of the weights, in the executable's order.
        library: As features and frozen: see ExecutableEntry; for machine code only.
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
        """True if data must be wrapped in a capsule."""
        return bool(self.library)


class LoweredGraph(Protocol):
    """A dense graph in a backend's own language: lowered once, then compiled for each bucket."""

    backend: str
    target: str
    precision: str

    @property
    def definition(self) -> bytes:
        """Everything besides the bucket that determines a compiled file.

        Equal only for equal graphs, frozen weights, libraries and processors.
        """

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
