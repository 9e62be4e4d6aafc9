"""The seam of what runs graphs on rows in the memory of a device (Extension.device_rows)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from freshet_serving.processor.backends import IoSpec, Program
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.ports import ENGINE, missing

if TYPE_CHECKING:
    from freshet_serving.processor.features.bound_request import BatchView
    from freshet_serving.processor.running.buffers import Tensors

OPTION, EXTENSION = "device_rows_mb", "device_rows"


def check_device_rows(field: str = "") -> None:
    """Raise BadInput, which prefixes the option with `field`, if no extension has rows on a device."""
    if ENGINE.only(EXTENSION) is None:
        raise missing(field + OPTION, EXTENSION)


class PlacedInputs(Protocol):
    """The inputs of one subgraph whose rows lie on a device; `spec`: inputs and outputs of its executables."""

    @property
    def spec(self) -> IoSpec: ...

    def fill(self, view: BatchView, inputs: Tensors) -> None:
        """Write the view's rows, as SubgraphRun.fill does."""


class PlacedRows(Protocol):
    """A version's rows in the memory of a device, in one process: what fills inputs and runs them, by subgraph."""

    @property
    def inputs(self) -> Mapping[str, PlacedInputs]: ...

    @property
    def programs(self) -> Mapping[str, Program]: ...

    def load(self, arrays: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Copy the rows of the version's files before anything is run; `arrays` (ServedTable.arrays, by table) stay."""

    def counted(self) -> Snapshot:
        """Return the counters."""
