"""The seam between the compiler and a backend's half of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

MAX_ERROR = 2e-3


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One bucket, compiled. data: what the file is to hold; suffix: of its name. weights: names, in its order.

    The rest is of machine code: see processor.package.manifest.ExecutableEntry. origin: the portable form, and the
    suffix of its own file."""

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
        """Whether data is to travel in a capsule."""
        return bool(self.library)


class LoweredGraph(Protocol):
    """A dense graph in a backend's own language: lowered once, then compiled for each bucket."""

    backend: str
    target: str
    precision: str

    @property
    def definition(self) -> bytes:
        """All that a compiled file follows from besides the bucket; equal for equal graphs, weights that are frozen
        inside, libraries and processors only."""

    def compile(self, bucket: int) -> CompiledGraph:
        """Compiles the graph for batches of `bucket` rows."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile a graph. target: "" for this machine's own. bound: how far scores of a lower precision may be
    off (processor.backends.bounded)."""

    backend: str
    precision: str = "float32"
    target: str = ""
    bound: float = MAX_ERROR

    def __str__(self) -> str:
        precision = "" if self.precision == "float32" else f":{self.precision}"
        return f"{self.backend}{precision}" + (f"@{self.target}" if self.target else "")


class CompilerBackend(Protocol):
    """The compiler's half of a backend, a module compiler.backends.<name>."""

    def variants(self) -> list[Variant]:
        """The variants that can be compiled on this machine; raises BadInput that says what to install."""

    def lower(self, graph: object, variant: Variant) -> LoweredGraph:
        """The graph in the backend's language; raises BadInput when it cannot be expressed."""
