"""The entries of a manifest (processor.package.manifest): inputs, features, tables, outputs, files and executables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.package.replies import STRING
from freshet_serving.processor.package.stage_entries import StageGrowth, StageLookup

KINDS = ("id", "string", "float", "ids", "strings")
FLOATS = "floats"
SIDES = ("user", "item", "context")
SCORE, USER, WHOLE = "score", "user", "whole"
DTYPES = ("int64", "float32", "string")
MAX_RANK = 8
WHOLES = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
DECLARED = {"int64": ("", *WHOLES), "float32": ("", "float16", "float64"), "string": ("",)}
"""Types that an imported model may declare where the engine computes with the key's type."""
OUTPUT_DTYPES = ("float32", "float16", "float64", "int64", *WHOLES, STRING)
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
HEX64 = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
FORMAT_1 = "freshet/1"
KEY_ID, SIGNATURE = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor of a request.

    Attributes:
        dtype: int64 | float32 | string.
        columns: 0 for shape [n]; k > 0 for shape [n, k].
        ragged: True for rows of varying length, sent as values + row_splits (or nested lists in JSON).
        declared: The type that an imported model itself gives it, if it differs.
        dims: The shape of a row if it differs from [columns]; its values are in row-major order.
    """

    name: str
    dtype: str
    columns: int = 0
    ragged: bool = False
    declared: str = ""
    dims: list[int] | None = None

    def as_sent(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array of its dtype as requests have it: int64 carries the bits of a declared uint64."""
        return values.view(np.uint64) if self.declared == "uint64" else values


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: the source of its values, and the position of its result in the dense graph's input.

    Attributes:
        kind: id (int64) | string | float | ids (ragged int64) | strings (ragged); in imported models also floats:
            `width` columns of the input from `column` on, unchanged, NaN included.
        input: Name of the tensor that it reads: an input of the request, an output of the stage or a transform.
        column: The column of `input`; -1 if the tensor is the feature.
        side: One of SIDES.
        table: The embedding table; "" for kinds float and floats.
        combiner: Pooling of ragged kinds. none (max_length 1 or more) does not pool: the rows of the first max_length
            values lie one after another, zeros where there are fewer, followed by max_length mask columns, 1.0 where
            there is a value: width (dim + 1) * max_length. So an absent value differs from a row of zeros.
        max_length: Only the first max_length values of a row of ragged kinds count; 0 for all of them.
        log1p: Kind float only: y = sign(x) * log1p(|x|) if set, else x.
        mean: Kind float only: then y = (y - mean) * scale; NaN -> 0.
        offset: First column in the dense input.
        width: Number of columns in the dense input.
    """

    name: str
    kind: str
    input: str
    column: int = -1
    side: str = "context"
    table: str = ""
    combiner: str = "sum"
    max_length: int = 0
    log1p: bool = False
    mean: float = 0.0
    scale: float = 1.0
    offset: int = 0
    width: int = 1

    @property
    def length(self) -> int:
        """Number of rows that lie one after another, with a mask after them; 0 if there is a combiner."""
        return self.max_length if self.combiner == "none" else 0


def feature_width(combiner: str, dim: int, max_length: int) -> int:
    """Return the columns of the dense input that a feature of rows of `dim` floats fills; see Feature."""
    return (dim + 1) * max_length if combiner == "none" else dim


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One embedding table; rows of `dim` elements.

    Attributes:
        rows: Number of rows in the version's file.
        dtype: Row type, float32 | float16 | bfloat16 | int8 (processor.tables.quantise): deltas carry float32; or
            record (processor.package.entities): deltas carry int32.
        default: The row of an unseen id, [dim], or [] for zeros; float32 whatever the row type.
        hash_seed: Seed of xxh3_64 over UTF-8 bytes for string features.
        unknown_key: The key whose row all unseen ids have once a delta has brought one, which is `default` until then:
            a model's out-of-vocabulary row; None if none can be brought.
    """

    name: str
    dim: int
    rows: int
    dtype: str = "float32"
    default: list[float] = field(default_factory=list)
    hash_seed: int = 0
    unknown_key: int | None = None


@dataclass(frozen=True, slots=True)
class StageEntry:
    """An imported model's stage (fallback partition), which its own library computes before the sparse graph.

    Attributes:
        outputs: What it computes from a request's inputs; inputs of features like any other.
        lookups: Rows that it reads. With any, it is run under the state of each batch (processor.features.stage_rows),
            and its outputs are floats: rows never decide which rows are read.
        growth: How much it computes for a request; None in packages that were written before it was measured.
    """

    runtime: str
    file: str
    outputs: list[Input]
    lookups: list[StageLookup] = field(default_factory=list)
    growth: StageGrowth | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One named output, computed as float32 [n, columns].

    Attributes:
        dims: Shape of a row in replies; None for [columns], [] for replies of rank 1.
        dtype: Type in replies.
        labels: Of type string: the strings in replies, which the computed numbers are positions in
            (processor.package.replies); `unknown` is the string at other positions.
        flat: Whether TensorFlow Serving's replies leave out the last dimension, of one column, if the tensors of the
            request leave it out: the model computes each number by itself, whatever the rank.
        exact: Whether its whole numbers exceed what float32 holds: PIECES columns stand for each
            (processor.package.replies), and dims for its shape.
    """

    name: str
    columns: int = 1
    dims: list[int] | None = None
    dtype: str = "float32"
    labels: list[str] | None = None
    flat: bool = False
    exact: bool = False
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the version's folder; sha256 if the manifest is signed: another file of one crc32 is easily made."""

    nbytes: int
    crc32: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ExecutableEntry:
    """The dense graph compiled for one backend, target and bucket.

    library, features, sha256, frozen and origin describe machine code, and are empty if any machine can read the file.
    cost_us and error are 0 if they were not measured.

    Attributes:
        source: Hash of what it was compiled from.
        weights: Names of its dense tensors, in the artefact's own order.
        library: The exact version of the library that can read it.
        features: Processor features that it needs.
        frozen: Hash of the weights inside (processor.backends.base.weights_hash).
        origin: The file from which it can be recompiled without TensorFlow.
        cost_us: Median microseconds of one run on one thread, on the machine measured_on.
        error: Distance of its outputs from TensorFlow's (compiler.building.calibrate).
        max_error: Largest error allowed to a lower precision.
        rows: File of rows on which the error is checked again with new dense weights (processor.running.bounded).
    """

    backend: str
    target: str
    bucket: int
    file: str
    source: str
    weights: list[str]
    precision: str = "float32"
    library: str = ""
    features: list[str] = field(default_factory=list)
    sha256: str = ""
    frozen: str = ""
    origin: str = ""
    cost_us: float = 0.0
    error: float = 0.0
    measured_on: str = ""
    subgraph: str = SCORE
    max_error: float = 0.0
    rows: str = ""

    @property
    def variant(self) -> str:
        """Backend, kind of device and precision for people, such as "openvino bfloat16", "onnxruntime", "xla cuda"."""
        device = " cuda" if "cuda" in self.target else " tensorrt" if "tensorrt" in self.target else ""
        return self.backend + device + ("" if self.precision == "float32" else f" {self.precision}")
