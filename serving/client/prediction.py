"""A prediction's request and reply, independent of the transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

import numpy as np
import orjson
from numpy.typing import NDArray

from freshet_serving.processor.errors import (
    BadInput,
    Conflict,
    Expired,
    FreshetError,
    NotFound,
    NotReady,
    Overloaded,
    TooLarge,
    UserGone,
)
from freshet_serving.serving.client.arrays import PREFIX_NBYTES, RequestTensor

MAX_MESSAGE_CHARACTERS = 1000
ITEM_IDS, SCORES = "item_ids", "scores"
DTYPES = {
    "BOOL": np.dtype("?"),
    **{f"FP{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)},
    **{f"INT{8 * n}": np.dtype(f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"UINT{8 * n}": np.dtype(f"<u{n}") for n in (1, 2, 4, 8)},
}
ERRORS: dict[int, type[FreshetError]] = {
    error.http_status: error for error in (BadInput, NotFound, Conflict, UserGone, TooLarge, NotReady, Expired)
}


class ClientCall(NamedTuple):
    """One call.

    Attributes:
        version: None if the server chooses.
        outputs: Names of the outputs to return; empty for all.
        headers: (name, value) pairs besides the protocol's own; metadata over gRPC.
        parameters: Parameters of the request, besides the protocol's own.
    """

    model: str
    version: int | None
    tensors: list[RequestTensor]
    outputs: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    parameters: Mapping[str, str | int | bool] = {}


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction: the outputs, and the model state that computed them.

    Attributes:
        model: Name of the model.
        version: Version that answered.
        generation: Version and step, such as "3.17"; "" from servers that have none.
        outputs: Arrays by output name: float32 [n, columns], or as an imported model declared them; strings are
            arrays of objects.
        features_missing: Inputs that were left out and that no online store had, with the reason; they had defaults.
        unknown_rows: Rows of the request, from 0, whose key the model has no features for, where it marks them.
        dropped_rows: Those that have no place in the outputs for that reason, where the model drops them.
        features: Values of inputs that were left out, by name with a row or one for each row, if the request has the
            header x-return-features; None for those that are too long to return.
        item_generation: Of the best items, the generation that their vectors are of, where they lag; else "".
        unfilled: Of the best items, how many fewer there are for each user than the request asks for.
        sequence_version: Of a user whose inputs the server keeps, the version after the request; else 0.
        state_generation: The generation that the user's part is of, where it was kept and is older or rounded; else "".
    """

    model: str
    version: int
    generation: str
    outputs: dict[str, NDArray[Any]] = field(repr=False)
    features_missing: dict[str, str] = field(default_factory=dict)
    unknown_rows: tuple[int, ...] = ()
    dropped_rows: tuple[int, ...] = ()
    features: dict[str, list[Any] | None] = field(default_factory=dict)
    item_generation: str = ""
    unfilled: int = 0
    sequence_version: int = 0
    state_generation: str = ""

    def scores(self, output: str | None = None) -> NDArray[Any]:
        """Return the scores of one output, [n] if it has one column.

        Raises BadInput if the output does not exist, or if none is named and there are several.
        """
        if output is None and len(self.outputs) != 1:
            raise BadInput(f"output: expected one of {', '.join(self.outputs)}, got nothing")
        name = next(iter(self.outputs)) if output is None else output
        if name not in self.outputs:
            raise BadInput(f"output: expected one of {', '.join(self.outputs)}, got {name[:64]!r}")
        array = self.outputs[name]
        return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best items for one user, best first, and the model state that ranked them.

    Attributes:
        item_ids: int64 [m], or objects [m] of text.
        scores: float32 [m].
        model: Name of the model.
        version: Version that answered.
        generation: Version and step, such as "3.17".
        item_generation: The generation that items' vectors are of, where they lag; else "".
        unfilled: How many fewer items there are than asked for.
    """

    item_ids: NDArray[Any]
    scores: NDArray[np.float32]
    model: str
    version: int
    generation: str
    item_generation: str = ""
    unfilled: int = 0

    @classmethod
    def of(cls, prediction: Prediction) -> Self:
        """Return the items of a prediction for one user; raise FreshetError if it does not hold any."""
        try:
            (item_ids,), (scores,) = prediction.outputs[ITEM_IDS], prediction.outputs[SCORES]
        except (KeyError, ValueError):
            raise FreshetError(
                f"reply: expected {ITEM_IDS} and {SCORES} of one user, got {', '.join(prediction.outputs)[:64]}"
            ) from None
        return cls(
            item_ids, scores, prediction.model, prediction.version, prediction.generation, prediction.item_generation,
            prediction.unfilled,
        )  # fmt: skip


def error_of(status: int, message: str, retry_after_s: float | None = None) -> FreshetError:
    """Return the error that a reply's status stands for; `retry_after_s` is None if the server sent none."""
    text = message[:MAX_MESSAGE_CHARACTERS] or f"answered {status}"
    if status == Overloaded.http_status:
        return Overloaded(text, 1.0 if retry_after_s is None else retry_after_s)
    return ERRORS.get(status, FreshetError)(text)


def prediction_of(
    model: str, version: int, outputs: dict[str, NDArray[Any]], header: Callable[[str], str]
) -> Prediction:
    """Return a reply as a Prediction.

    Args:
        header: Returns a header of the reply, of metadata over gRPC, by its name; "" if there is none.

    Raises:
        ValueError: A header is malformed.
    """
    missing = [part.strip().partition("=") for part in header("x-features-missing").split(",")]
    features = orjson.loads(header("x-features") or "{}")
    if not isinstance(features, dict):
        raise ValueError("x-features: expected an object")
    return Prediction(
        model,
        version,
        header("x-model-generation"),
        outputs,
        features_missing={unquote(name): reason for name, _, reason in missing if reason},
        unknown_rows=_rows(header("x-unknown-rows")),
        dropped_rows=_rows(header("x-dropped-rows")),
        features=features,
        item_generation=header("x-item-generation"),
        unfilled=int(header("x-unfilled") or 0),
        sequence_version=int(header("x-sequence-version") or 0),
        state_generation=header("x-state-generation"),
    )


def _rows(listed: str) -> tuple[int, ...]:
    """Return the rows of a list such as "0,3-5"; raise ValueError."""
    rows: list[int] = []
    for part in listed.split(",") if listed else ():
        first, _, last = part.strip().partition("-")
        rows += range(int(first), int(last or first) + 1)
    return tuple(rows)


def output(name: Any, datatype: Any, shape: Any, data: bytes | memoryview) -> NDArray[Any]:
    """Return one output of a reply as an array; raise FreshetError if its parts are inconsistent."""
    if datatype == "BYTES":
        return _texts(name, [int(size) for size in shape], bytes(data))
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise FreshetError(
            f"reply: expected numbers or strings for output {str(name)[:64]!r}, got {str(datatype)[:16]!r}"
        )
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes) or len(data) != dtype.itemsize * int(np.prod(sizes, dtype=object)):
        raise FreshetError(f"reply: {len(data)} bytes do not fill output {str(name)[:64]!r} of shape {sizes[:8]}")
    return np.frombuffer(data, dtype).reshape(sizes)


def _texts(name: Any, sizes: list[int], data: bytes) -> NDArray[Any]:
    """Return an output of strings, each of which follows its length in 4 bytes, as an array of objects."""
    texts, at = [], 0
    while at + PREFIX_NBYTES <= len(data):
        first = at + PREFIX_NBYTES
        at = first + int.from_bytes(data[at:first], "little")
        texts.append(data[first:at].decode(errors="replace"))
    if at != len(data) or any(size < 0 for size in sizes) or len(texts) != np.prod(sizes, dtype=object):
        raise FreshetError(f"reply: {len(data)} bytes do not fill output {str(name)[:64]!r} of shape {sizes[:8]}")
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(sizes)
