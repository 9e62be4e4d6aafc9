"""Lifecycle of a server as its ports see it: availability of the processor, readiness, draining.

The server's own threads write it, the event loops read it. Each field is one reference that is replaced whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from freshet_serving.processor.errors import NotReady


class Engine(Protocol):
    """The engine of a lifecycle: the host of models, or a worker's RoutedEngine."""

    @property
    def ready(self) -> bool: ...

    @property
    def stale(self) -> str:
        """Reason why the served state is too old, in one line; "" if it is not."""

    @property
    def missing(self) -> str:
        """Reason in one line why models do not answer as they should; "" if they do."""

    @property
    def concerns(self) -> tuple[str, ...]:
        """Reasons why existing data is not served, one line each."""


P = TypeVar("P", bound=Engine)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Availability(Protocol[T_co]):
    """The part of a Lifecycle that the ports read."""

    @property
    def draining(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    @property
    def unready_reason(self) -> str: ...

    @property
    def reasons(self) -> dict[str, list[str]]: ...

    def processor(self) -> T_co:
        """Return the processor, or the part of it that the ports use; raise NotReady if there is none."""


class Lifecycle(Generic[P]):
    """State of a server: loading -> serving -> draining (unready, still serving) -> closed."""

    def __init__(self) -> None:
        self._processor: P | None = None
        self._draining = False
        self._obstacle = ""

    def open(self, processor: P) -> None:
        self._processor = processor

    def drain(self) -> None:
        """Turn readiness off for good; requests are still answered."""
        self._draining = True

    def block_readiness(self, obstacle: str) -> None:
        """Turn readiness off for an external reason, in one line; "" removes the reason."""
        self._obstacle = obstacle

    def close(self) -> P | None:
        """Take the processor away from the ports and return it; None on later calls."""
        self._draining = True
        processor, self._processor = self._processor, None
        return processor

    def part(self, pick: Callable[[P], T]) -> LifecyclePart[T]:
        return LifecyclePart(self, pick)

    @property
    def opened(self) -> bool:
        return self._processor is not None

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def ready(self) -> bool:
        processor = self._processor
        return processor is not None and not self._draining and not self._obstacle and processor.ready

    @property
    def unready_reason(self) -> str:
        """Reason why the server is not ready, in one line; meaningful only if it is not."""
        if self._draining:
            return "server: draining"
        processor = self._processor
        if processor is None:
            return self._obstacle or "server: models are loading"
        reason = self._obstacle or processor.stale
        return reason or f"server: {processor.missing or 'not every process is up'}"

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Additional fields of a reply about readiness: what is pending or damaged although the server is ready."""
        concerns = self._processor.concerns if self._processor is not None else ()
        return {"reasons": list(concerns)} if concerns else {}

    def processor(self) -> P:
        """Return the processor. Raises NotReady while models load and after the server has closed."""
        processor = self._processor
        if processor is None:
            raise NotReady("server: draining" if self._draining else "server: models are loading")
        return processor


class LifecyclePart(Generic[T]):
    """A view of a Lifecycle whose processor() returns a part of the processor, selected once."""

    def __init__(self, whole: Lifecycle[Any], pick: Callable[[Any], T]) -> None:
        self._whole, self._pick = whole, pick
        self._part: T | None = None

    @property
    def draining(self) -> bool:
        return self._whole.draining

    @property
    def ready(self) -> bool:
        return self._whole.ready

    @property
    def unready_reason(self) -> str:
        return self._whole.unready_reason

    @property
    def reasons(self) -> dict[str, list[str]]:
        return self._whole.reasons

    def processor(self) -> T:
        """Return the part. Raises NotReady while models load.

        After the server has closed, the part is still returned and reports its own state.
        """
        part = self._part
        if part is None:
            part = self._part = self._pick(self._whole.processor())
        return part
