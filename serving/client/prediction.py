"""One prediction as a client asks for it and gets it, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
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
)
from freshet_serving.serving.client.arrays import RequestTensor

MAX_MESSAGE_CHARACTERS = 1000
DTYPES = {
    "BOOL": np.dtype("?"),
    **{f"FP{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)},
    **{f"INT{8 * n}": np.dtype(f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"UINT{8 * n}": np.dtype(f"<u{n}") for n in (1, 2, 4, 8)},
}
ERRORS: dict[int, type[FreshetError]] = {
    error.http_status: error for error in (BadInput, NotFound, Conflict, TooLarge, NotReady, Expired)
}


class ClientCall(NamedTuple):
    """headers: (name, value) beside the protocol's own; gRPC's metadata."""

    model: str
    version: int | None
    tensors: list[RequestTensor]
    outputs: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction: what answered, and its answer. outputs: float32 [n, columns] each, or as an imported model declared
    it. generation: version and step,
    such as "3.17"; empty from servers that have none."""

    model: str
    version: int
    generation: str
    outputs: dict[str, NDArray[Any]] = field(repr=False)

    def scores(self, output: str | None = None) -> NDArray[Any]:
        """The scores of one output, [n] where it has one column; the only one if not named. Raises BadInput."""
        if output is None and len(self.outputs) != 1:
            raise BadInput(f"output: one of {', '.join(self.outputs)} wanted, got nothing")
        name = next(iter(self.outputs)) if output is None else output
        if name not in self.outputs:
            raise BadInput(f"output: one of {', '.join(self.outputs)} wanted, got {name[:64]!r}")
        array = self.outputs[name]
        return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


class Transport(Protocol):
    """Sends calls one by one, from any thread. timeout_s: for all of it, None for any time. Raises FreshetError."""

    def send(self, call: ClientCall, timeout_s: float | None) -> Prediction: ...

    def ready(self, timeout_s: float | None) -> bool: ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """See Transport; on one event loop."""

    async def send(self, call: ClientCall, timeout_s: float | None) -> Prediction: ...

    async def ready(self, timeout_s: float | None) -> bool: ...

    async def close(self) -> None: ...


def error_of(status: int, message: str, retry_after_s: float | None = None) -> FreshetError:
    """The error that the server raised, by its HTTP status."""
    text = message[:MAX_MESSAGE_CHARACTERS] or f"answered {status}"
    if status == Overloaded.http_status:
        return Overloaded(text, 1.0 if retry_after_s is None else retry_after_s)
    return ERRORS.get(status, FreshetError)(text)


def output(name: Any, datatype: Any, shape: Any, data: bytes | memoryview) -> NDArray[Any]:
    """One tensor of a reply; raises FreshetError when its parts do not fit together."""
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise FreshetError(f"reply: numbers wanted for output {str(name)[:64]!r}, got {str(datatype)[:16]!r}")
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes) or len(data) != dtype.itemsize * int(np.prod(sizes, dtype=object)):
        raise FreshetError(f"reply: {len(data)} bytes do not fill output {str(name)[:64]!r} of shape {sizes[:8]}")
    return np.frombuffer(data, dtype).reshape(sizes)
