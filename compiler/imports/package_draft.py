"""The record of a package while it is imported, which both ways of an import draft, verify and publish.

The ways differ in how they find its parts (draft, onnx_native.native_draft). What the package says of them is the same:
names, signatures, outputs in the model's own types, the manifest. Needs no TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from freshet_serving.compiler.building.compile import AnyDenseGraph
from freshet_serving.compiler.building.finite_check import NOT_JUDGED
from freshet_serving.compiler.imports.feeds import FeedSpec, own_names_of, plain
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.package import (
    DEFAULT_SIGNATURE,
    MAX_RANK,
    NAME,
    OUTPUT_DTYPES,
    PIECE_BITS,
    STRING,
    Feature,
    Manifest,
    Output,
    ServingSignature,
    StageEntry,
    TableEntry,
    Transform,
)

MAX_DIM = 4096
"""Longest row of a table that is imported."""
SINGLE = "one number for the whole batch: left out, because replies hold numbers for every row"
COMPUTED = "computed as float32, which is exact for integers up to 2**24"

Arrays = dict[str, NDArray[Any]]
Graph = TypeVar("Graph", bound=AnyDenseGraph)


@dataclass(frozen=True, slots=True, eq=False)
class PackageDraft(Generic[Graph]):
    """A package before anything is compiled.

    Attributes:
        tables: By name, the entry, and the tensors of its file (processor.tables.table.packed).
        outputs: As the model declares them.
        graph: Its dense graph, with the weights to publish.
        width: Columns of the dense input.
        stage_data: The stage's file.
        signatures: [] for one that replies with all outputs by their names.
        copies: Tables whose rows the model holds a second time.
        ranking: Notes of a version that ranks items.
    """

    inputs: Sequence[FeedSpec]
    features: list[Feature]
    tables: Mapping[str, tuple[TableEntry, Arrays]]
    outputs: list[Output]
    graph: Graph
    width: int
    report: dict[str, Any]
    transforms: list[Transform] = field(default_factory=list)
    stage: StageEntry | None = None
    stage_data: bytes = b""
    signatures: list[ServingSignature] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)
    ranking: dict[str, Any] = field(default_factory=dict)

    def manifest(self, model: str, version: int) -> Manifest:
        return Manifest(
            model=model,
            version=version,
            arch="imported",
            created_at=time.time(),
            inputs=[fed.input for fed in self.inputs],
            features=self.features,
            tables=[entry for entry, _ in self.tables.values()],
            outputs=self.outputs,
            width=self.width,
            dense={name: list(array.shape) for name, array in self.graph.weights.items()},
            files={},
            transforms=self.transforms,
            stage=self.stage,
            copies=self.copies,
            signatures=self.signatures,
            own_names=own_names_of(self.inputs),
            notes={"import": self.report, **NOT_JUDGED, **self.ranking},
        )


def label_of(name: str) -> str:
    label = plain(name)
    return f"{label}_" if label == MATRIX or NAME.fullmatch(label) is None else label


def unused_name(name: str, taken: Container[str]) -> str:
    number, unused = 1, name
    while unused in taken:
        number += 1
        unused = f"{name[:120]}-{number}"
    return unused


def pieces_of(source: str, add: Callable[..., str]) -> list[str]:
    """Return the names of transforms that take whole numbers apart, the lowest piece first.

    `add` takes an operation, its input and maybe `integers`, and returns the name of that transform.
    """
    size = 1 << PIECE_BITS
    above = add("floor_divide", source, integers=[size])
    parts = [add("floor_modulo", part, integers=[size]) for part in (source, above)]
    parts.append(add("floor_divide", source, integers=[size**2]))
    return [add("float32", part) for part in parts]


def served_signatures(labels: Mapping[str, str], known: Sequence[ServingSignature] = ()) -> list[ServingSignature]:
    """Return the signatures with the outputs that the package has; none if the only one has them all by name.

    `labels` are the package's names of outputs by the model's; without signatures, the model has one with all outputs.
    """
    served = []
    for signature in known or [ServingSignature(DEFAULT_SIGNATURE, outputs={name: name for name in labels})]:
        outputs = {model_name: labels[name] for model_name, name in signature.outputs.items() if name in labels}
        served += [replace(signature, outputs=outputs)] if outputs else []
    renamed = any(model_name != label for signature in served for model_name, label in signature.outputs.items())
    return served if len(served) > 1 or renamed else []


def declared_output(
    output: Output,
    dims: tuple[int, ...] | None,
    dtype: str,
    exact: int = 0,
    labels: list[str] | None = None,
    unknown: str = "",
    flat: bool = False,
) -> Output:
    """Return an output of the dense graph in the shape and type that the model itself gives it.

    Args:
        dims: Shape of a row; None if a row is no single entry of the model's tensor.
        dtype: The model's name of its type.
        exact: Whole numbers of a row that come in pieces; 0 for an output of plain numbers.
        labels: Of an output of strings, the string at each position, and `unknown` at others.
    """
    shape = list(dims) if dims is not None and len(dims) < MAX_RANK else None
    if exact:
        shape = [exact] if shape is None else shape
    elif dims == (output.columns,):
        shape = None
    if labels is not None:
        dtype = STRING
    elif not exact and dtype not in OUTPUT_DTYPES:
        dtype = output.dtype
    return Output(output.name, output.columns, shape, dtype, labels, flat, exact > 0, unknown)
