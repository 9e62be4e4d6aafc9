"""Content of replies: the outputs of each signature of a version, under the names that clients know, and labels.

An imported model may have several signatures (TensorFlow Serving's `signature_name`): all read the same inputs and are
computed together; each replies with some of the outputs. An output of strings is computed as positions in its list of
labels, and codecs write the labels.

float32 holds whole numbers up to 2**24. An output of larger ones that is exact is computed in PIECES columns for each
number, piece after piece: low + middle * 2**PIECE_BITS + high * 2**(2 * PIECE_BITS), in the 64 bits of an int64.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput

DEFAULT_SIGNATURE = "serving_default"
PREDICT, CLASSIFY, REGRESS = (f"tensorflow/serving/{method}" for method in ("predict", "classify", "regress"))
STRING = "string"
INTEGERS = ("int32", "int64", "uint32", "uint64")
"""Types of whole numbers that float32 does not hold."""
PIECES, PIECE_BITS = 3, 22
MAX_SIGNATURES = 64
MAX_LABELS, MAX_LABELS_NBYTES = 1 << 20, 16 << 20
"""Most labels of one output: its positions are exact in float32, and all labels are in the manifest."""


@dataclass(frozen=True, slots=True)
class ServingSignature:
    """One of several signatures: PREDICT, CLASSIFY or REGRESS, and the model's outputs by their names in replies."""

    name: str
    method: str = PREDICT
    outputs: dict[str, str] = field(default_factory=dict)


def validate_signatures(signatures: list[ServingSignature], outputs: Collection[str]) -> None:
    """Raise BadInput unless signatures are a version's: none, or the default one and others, of its outputs."""
    names = [s.name for s in signatures]
    if not names:
        return
    if DEFAULT_SIGNATURE not in names or len(set(names)) != len(names) or len(names) > MAX_SIGNATURES:
        raise BadInput(
            f"manifest.signatures: expected {DEFAULT_SIGNATURE!r} and others, at most {MAX_SIGNATURES}, each once, got "
            f"{', '.join(names)[:200]}"
        )
    for s in signatures:
        where = f"manifest.signatures[{s.name[:64]}]"
        if s.method not in (PREDICT, CLASSIFY, REGRESS):
            raise BadInput(f"{where}.method: expected {PREDICT}, {CLASSIFY} or {REGRESS}, got {s.method[:64]!r}")
        unknown = sorted(set(s.outputs.values()) - set(outputs))
        if unknown or not s.outputs:
            got = repr(unknown[0][:64]) if unknown else "none"
            raise BadInput(f"{where}.outputs: expected some of {', '.join(outputs)[:200]}, got {got}")


def validate_own_names(own_names: Mapping[str, str], inputs: Collection[str]) -> None:
    """Raise BadInput unless each name of the model's signature stands for an input that has another name here."""
    for alias, name in own_names.items():
        if name not in inputs or alias in inputs:
            raise BadInput(f"manifest.own_names[{alias[:64]!r}]: expected another name of an input, got {name[:64]!r}")


def validate_labels(where: str, dtype: str, labels: list[str] | None) -> None:
    """Raise BadInput unless an output, named `where` in messages, has labels just if its replies are strings."""
    if (dtype == STRING) != bool(labels):
        raise BadInput(f"{where}.labels: expected labels for type {STRING} and for no other, got type {dtype[:40]!r}")
    if labels and len(labels) > MAX_LABELS:
        raise BadInput(f"{where}.labels: expected at most {MAX_LABELS}, got {len(labels)}")


def labels_of(values: NDArray[Any]) -> list[str] | None:
    """Return a model's strings or bytes as labels; None if they are not a list of UTF-8 that a manifest can hold."""
    if values.ndim != 1 or not 0 < values.size <= MAX_LABELS:
        return None
    encoded = [value.encode() if isinstance(value, str) else bytes(value) for value in values.tolist()]
    if sum(map(len, encoded)) > MAX_LABELS_NBYTES:
        return None
    try:
        return [value.decode() for value in encoded]
    except UnicodeDecodeError:
        return None


def texts(labels: list[str]) -> NDArray[Any]:
    """Return labels as an array of objects, from which labelled() takes them."""
    objects = np.empty(len(labels), object)
    objects[:] = labels
    return objects


def joined(pieces: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the numbers of an exact output, [n, k] with the bits of a uint64, from its columns [n, PIECES * k]."""
    low, middle, high = np.hsplit(pieces.astype(np.int64), PIECES)
    numbers: NDArray[np.int64] = low + (middle << PIECE_BITS) + (high << 2 * PIECE_BITS)
    return numbers


def labelled(positions: NDArray[Any], of: NDArray[Any], unknown: str = "") -> NDArray[Any]:
    """Return the labels (of texts()) at computed positions; `unknown` for NaN or a position outside them."""
    inside = (positions > -0.5) & (positions < len(of) - 0.5)
    labels = of[np.rint(np.where(inside, positions, 0)).astype(np.int64)]
    if not inside.all():
        labels[~inside] = unknown
    return labels
