"""Write inputs that are lists to stores outside of the process, as lookups of a version read them.

The extension that has the stores implements it (processor.ports.InputStores); without one a trainer that writes to a
store is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged
from freshet_serving.processor.features.input_lookup import EXTENSION, ONLINE_STORES, input_stores
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import missing


class ListWriter(Protocol):
    """Writes inputs that are lists to a store, as lookups of a version read them. Of one thread."""

    @property
    def inputs(self) -> Sequence[str]:
        """The inputs that are written."""

    def begin(self) -> str:
        """Connect, or raise NotReady; return what changes once the store may have lost what was written."""

    def write(
        self, keys: Column, lists: Mapping[str, Ragged], newest_s: NDArray[np.int64], left_s: NDArray[np.float64] | None
    ) -> None:
        """Write the lists of entities, of one length an entity; one without values has no lists afterwards.

        Args:
            newest_s: Unix seconds of each entity's newest value.
            left_s: Seconds after which each entity's lists are no longer there; None for never.

        Raises:
            NotReady: The store does not take them, and what begin() returned may no longer be so.
            BadInput: Something else lies under a key.
        """

    def erase(self, keys: Column) -> int:
        """Remove the lists of entities; return how many had any. Raises NotReady."""


def list_writer(settings: Any, manifest: Manifest, inputs: Collection[str]) -> ListWriter:
    """Return what writes inputs to a store of parse_stores(), not connected; BadInput if the version reads others."""
    stores = input_stores()
    if stores is None:
        raise missing(ONLINE_STORES, EXTENSION)
    writer: ListWriter = stores.list_writer(settings, manifest, inputs)
    return writer
