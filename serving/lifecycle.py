"""A server's lifecycle, which its ports ask: is there a processor, and does this server still want new traffic?

Written by the server's own threads, read by the event loops; each field is one reference, replaced whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from freshet_serving.processor.errors import NotReady


class Engine(Protocol):
    """The engine that a lifecycle holds: the host of models, or a worker's predictor."""

    @property
    def ready(self) -> bool: ...

    @property
    def stale(self) -> str:
        """Why what it serves is too old, in one line; "" where it is not."""

    @property
    def concerns(self) -> tuple[str, ...]:
        """What keeps something that is there from being served, a line each."""


P = TypeVar("P", bound=Engine)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Availability(Protocol[T_co]):
    """A Lifecycle as the ports read it."""

    @property
    def draining(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    @property
    def unready_reason(self) -> str: ...

    @property
    def reasons(self) -> dict[str, list[str]]: ...

    def processor(self) -> T_co:
        """See Lifecycle.processor."""


class Lifecycle(Generic[P]):
    """loading -> serving -> draining (unready, still serving) -> closed."""

    def __init__(self) -> None:
        self._processor: P | None = None
        self._draining = False
        self._obstacle = ""

    def open(self, processor: P) -> None:
        self._processor = processor

    def loading(self, load: Callable[[], P]) -> Callable[[], tuple[P, Callable[[], None]]]:
        """Makes load() give, beside what it loads, the call that opens this lifecycle with it."""

        def loaded() -> tuple[P, Callable[[], None]]:
            processor = load()
            return processor, partial(self.open, processor)

        return loaded

    def drain(self) -> None:
        """Turns readiness off for good; requests are still answered."""
        self._draining = True

    def block_readiness(self, obstacle: str) -> None:
        """Turns readiness off for a reason that lies elsewhere, in one line; "" for none, any more."""
        self._obstacle = obstacle

    def close(self) -> P | None:
        """Takes the processor away from the ports and returns it, once."""
        self._draining = True
        processor, self._processor = self._processor, None
        return processor

    def part(self, pick: Callable[[P], T]) -> LifecyclePart[T]:
        """This lifecycle, as ports see it that ask a part of the processor."""
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
        """Why the server is not ready, in one line; of one that is not."""
        if self._draining:
            return "server: draining"
        stale = self._processor.stale if self._processor is not None else ""
        return self._obstacle or stale or "server: not every model is ready"

    @property
    def reasons(self) -> dict[str, list[str]]:
        """What a reply about readiness says besides, where there is anything: what waits or is damaged although the
        server is ready."""
        concerns = self._processor.concerns if self._processor is not None else ()
        return {"reasons": list(concerns)} if concerns else {}

    def processor(self) -> P:
        """The processor; raises NotReady while models load and once the server has closed."""
        processor = self._processor
        if processor is None:
            raise NotReady("server: draining" if self._draining else "server: models are loading")
        return processor


class LifecyclePart(Generic[T]):
    """A Lifecycle whose processor() is a part of the processor, picked once. Ready, and draining, when the whole is."""

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
        """The part; raises NotReady while models load. Once the server has closed it answers for itself."""
        part = self._part
        if part is None:
            part = self._part = self._pick(self._whole.processor())
        return part
