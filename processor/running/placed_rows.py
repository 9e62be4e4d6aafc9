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
    """Raise BadInput if no extension has rows on a device.

    Args:
        field: Beginning of the option's name in messages.
    """
    if ENGINE.only(EXTENSION) is None:
        raise missing(field + OPTION, EXTENSION)


class PlacedInputs(Protocol):
    """The inputs of one subgraph whose rows lie on a device.

    Attributes:
        spec: Inputs and outputs of its executables.
    """

    @property
    def spec(self) -> IoSpec: ...

    def fill(self, view: BatchView, inputs: Tensors) -> None:
        """Write the view's rows, as SubgraphRun.fill does.

        Args:
            view: The rows to fill.
            inputs: Buffers by name.
        """


class PlacedRows(Protocol):
    """A version's rows in the memory of a device, in one process.

    Attributes:
        inputs: What fills the inputs of subgraphs, by subgraph.
        programs: What runs them.
    """

    @property
    def inputs(self) -> Mapping[str, PlacedInputs]: ...

    @property
    def programs(self) -> Mapping[str, Program]: ...

    def load(self, arrays: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Copy the rows of the version's files, before anything is run.

        Args:
            arrays: By table, its buffers (processor.tables.table.Table.arrays), which stay.
        """

    def counted(self) -> Snapshot:
        """Return the counters."""
