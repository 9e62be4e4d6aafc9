"""What the ports ask before they answer: is there a processor, and does this server still want new traffic?

Written by the server's own threads, read by the event loops; each field is one reference, replaced whole.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from processor.errors import NotReady


class Serving(Protocol):
    """A processor, the host of a fleet, or a worker's predictor: whatever the ports ask."""

    @property
    def ready(self) -> bool: ...


P = TypeVar("P", bound=Serving)


class Lifecycle(Generic[P]):
    """loading -> serving -> draining (unready, still serving) -> closed."""

    def __init__(self) -> None:
        self._processor: P | None = None
        self._draining = False

    def open(self, processor: P) -> None:
        self._processor = processor

    def drain(self) -> None:
        """Turns readiness off for good; requests are still answered."""
        self._draining = True

    def close(self) -> P | None:
        """Takes the processor away from the ports and returns it, once."""
        self._draining = True
        processor, self._processor = self._processor, None
        return processor

    @property
    def opened(self) -> bool:
        return self._processor is not None

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def ready(self) -> bool:
        processor = self._processor
        return processor is not None and not self._draining and processor.ready

    def processor(self) -> P:
        """The processor; raises NotReady while models load and once the server has closed."""
        processor = self._processor
        if processor is None:
            raise NotReady("server: draining" if self._draining else "server: models are loading")
        return processor
