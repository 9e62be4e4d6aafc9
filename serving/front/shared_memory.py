"""Regions of shared memory that clients have registered, which an extension serves: None where nobody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from freshet_serving.processor.ports import missing
from freshet_serving.serving.codecs.kserve_header import SharedMemory
from freshet_serving.serving.ports import SERVER


class Regions(SharedMemory, Protocol):
    """Registered regions, by name. One event loop registers them; its other threads read them too."""

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Register a region of `nbytes` bytes at an offset of the shared memory object `key`.

        Raises:
            BadInput: An argument is invalid, or the name is in use.
            NotFound: There is no such object.
            TooLarge: There are too many regions already.
        """
        ...

    def unregister(self, name: str = "") -> None:
        """Unregister one region, or without a name all; an unknown name is not an error."""
        ...

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the status of one region, or without a name of all; raise NotFound for an unknown name."""
        ...


def region_opener() -> Callable[[int], Regions]:
    """Return what opens regions, from the most bytes that a request may read; raise BadInput without the extension."""
    opener: Callable[[int], Regions] | None = SERVER.only("regions")
    if opener is None:
        raise missing("shared_memory", "shared_memory")
    return opener
