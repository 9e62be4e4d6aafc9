"""A prediction's request and reply, independent of the transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self
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
        model: Name of the model.
        version: Version number; None if the server chooses.
        tensors: The inputs.
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
        """Return the items of a prediction for one user.

        Raises:
            FreshetError: It does not hold any.
        """
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


class Transport(Protocol):
    """A way to send calls to one server, from any thread.

    send() raises FreshetError; a timeout of None is unlimited.
    """

    def send(self, call: ClientCall, timeout_s: float | None) -> Prediction: ...

    def ready(self, timeout_s: float | None) -> bool: ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """A Transport for coroutines of one event loop."""

    async def send(self, call: ClientCall, timeout_s: float | None) -> Prediction: ...

    async def ready(self, timeout_s: float | None) -> bool: ...

    async def close(self) -> None: ...


def error_of(status: int, message: str, retry_after_s: float | None = None) -> FreshetError:
    """Return the error that the server raised.

    Args:
        status: HTTP status of the reply.
        message: The server's message.
        retry_after_s: Seconds after which to retry, if the server sent them.
    """
    text = message[:MAX_MESSAGE_CHARACTERS] or f"answered {status}"
    if status == Overloaded.http_status:
        return Overloaded(text, 1.0 if retry_after_s is None else retry_after_s)
    return ERRORS.get(status, FreshetError)(text)


def missing_of(listed: str) -> dict[str, str]:
    """Return the reasons by input that a reply's x-features-missing lists.

    Args:
        listed: The header; "" if there is none.
    """
    pairs = [part.strip().partition("=") for part in listed.split(",")]
    return {unquote(name): reason for name, _, reason in pairs if reason}


def features_of(text: str) -> dict[str, list[Any] | None]:
    """Return the values by input that a reply's x-features has.

    Args:
        text: The header; "" if there is none.

    Raises:
        ValueError: It is no JSON object.
    """
    columns = orjson.loads(text) if text else {}
    if not isinstance(columns, dict):
        raise ValueError("expected an object")
    return columns


def rows_of(listed: str) -> tuple[int, ...]:
    """Return the rows that a reply's x-unknown-rows or x-dropped-rows lists.

    Args:
        listed: The header; "" if there is none.

    Raises:
        ValueError: It is not a list of rows.
    """
    rows: list[int] = []
    for part in listed.split(",") if listed else ():
        first, _, last = part.strip().partition("-")
        rows += range(int(first), int(last or first) + 1)
    return tuple(rows)


def output(name: Any, datatype: Any, shape: Any, data: bytes | memoryview) -> NDArray[Any]:
    """Return one output of a reply as an array.

    Args:
        name: Name of the output.
        datatype: KServe's name of its type.
        shape: Its shape.
        data: Its values.

    Raises:
        FreshetError: The parts are inconsistent.
    """
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
