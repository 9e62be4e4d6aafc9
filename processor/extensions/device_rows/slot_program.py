"""Run a subgraph whose rows lie on a device: fill lines instead of features, and run the graph that gathers.

It takes the place of a subgraph's programs and of what fills its inputs; sessions, buffers and runners see executables
with other inputs. The inputs are those of the package, with lines in the place of the features (slot_layout), and for
each pool the rows that have no place, which are touched only where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Executable, IoSpec, Matrix, Program, Weights, aligned
from freshet_serving.processor.backends.base import failed
from freshet_serving.processor.backends.xla import Device
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.device_rows import device_modules, slot_kernels
from freshet_serving.processor.extensions.device_rows.row_mirror import RowMirror
from freshet_serving.processor.extensions.device_rows.slot_layout import PoolKey, SlotLayout
from freshet_serving.processor.features.bound_request import BatchView, NonFiniteInput, address
from freshet_serving.processor.features.late_values import fill_left_out
from freshet_serving.processor.kernels import pool as pooling
from freshet_serving.processor.running.buffers import Tensors
from freshet_serving.processor.running.fillers import Fill

HOST_ROWS = "rows of the host "


@dataclass(frozen=True, slots=True, eq=False)
class SlotInputs:
    """The inputs of one subgraph.

    Attributes:
        name: Name of the input that holds features.
        layout: Its lines.
        spec: Inputs and outputs of the executables.
        given: Inputs and outputs of the package's executables.
        mirror: The rows on the device.
        fillers: What fills the other inputs, by name.
    """

    name: str
    layout: SlotLayout
    spec: IoSpec
    given: IoSpec
    mirror: RowMirror
    fillers: Sequence[tuple[str, Fill]]

    @classmethod
    def of(
        cls, name: str, layout: SlotLayout, given: IoSpec, mirror: RowMirror, fillers: Sequence[tuple[str, Fill]]
    ) -> SlotInputs:
        """Return the inputs of a subgraph.

        Args:
            name: Name of the input that holds features.
            layout: Its lines.
            given: Inputs and outputs of the package's executables.
            mirror: The rows on the device.
            fillers: What fills inputs.
        """
        inputs = {n: (None, layout.line) if n == name else dims for n, dims in given.inputs.items()}
        host = {HOST_ROWS + str(n): (None, layout.places(key) * key.dim) for n, key in enumerate(layout.pools)}
        others = [(n, fill) for n, fill in fillers if n != name]
        return cls(name, layout, IoSpec({**inputs, **host}, given.outputs), given, mirror, others)

    def fill(self, view: BatchView, inputs: Tensors) -> None:
        """Write the view's rows into all inputs but the user's tensors.

        Args:
            view: The rows to fill.
            inputs: Buffers by name.

        Raises:
            NonFiniteInput: A float is infinite, or becomes so when scaled.
            FreshetError: A stage refuses a request, or was not done in time.
        """
        for name, fill in self.fillers:
            if name in inputs:
                fill(view, inputs[name])
        lines, layout, mirror = inputs[self.name], self.layout, self.mirror
        mirror.catch_up(view.tables, view.epoch)
        if mirror.partial:
            mirror.phases.fill(id(lines.base))
        sources, kept = view.inputs(), None
        if layout.host is not None and layout.host.late:
            kept = fill_left_out(layout.host.late, view, sources)
        lookups = layout.lookups
        if mirror.partial:
            lookups = lookups.copy()
            at = 0
            for n, key in enumerate(layout.pools):
                host = inputs[HOST_ROWS + str(n)]
                own = slice(at, at + len(layout.pools[key]))
                lookups[own, slot_kernels.HOST], lookups[own, slot_kernels.PITCH] = address(host), host.shape[1] * 4
                at = own.stop
        places = lines.view(np.int32)
        absent = slot_kernels.fill(
            view.tables, mirror.devices, lookups, sources, view.spans, view.epoch, places, view.counts
        )
        if absent:
            mirror.missed(absent)
        host_plan = layout.host
        if host_plan is not None and pooling.run(
            view.tables, host_plan.plan, host_plan.scaling, sources, view.spans, view.epoch, lines, view.counts
        ):
            raise NonFiniteInput("inputs: expected numbers that are finite after scaling")
        if kept is not None and kept.refusal is not None:
            raise kept.refusal


class SlotProgram(Program):
    """A program whose executables gather rows on the device.

    Its buckets are compiled from the package's portable forms when it is made; add() is not for it.
    """

    def __init__(self, inputs: SlotInputs, device: Device) -> None:
        """Take the inputs; compile() adds buckets.

        Args:
            inputs: The subgraph's inputs.
            device: The device.
        """
        self._inputs, self._device = inputs, device
        self._compiled: dict[int, tuple[Any, Sequence[str]]] = {}

    def compile(self, bucket: int, portable: bytes, weights: Sequence[str]) -> None:
        """Compile one bucket.

        Args:
            bucket: Its rows.
            portable: The dense graph of so many rows, as a portable artifact.
            weights: Names of its weights, in its order.

        Raises:
            Corrupt: The artifact is none of this graph.
        """
        own = self._inputs
        names = list(own.given.inputs)
        module = device_modules.gathering(
            portable, bucket, len(names), names.index(own.name), own.layout, own.mirror.sizes
        )
        self._compiled[bucket] = self._device.compile(module), weights

    def add(self, artefact: Any) -> None:
        raise BadInput(f"executable b{artefact.bucket}: rows on a device are gathered by what is compiled for them")

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        """Return all buckets with these weights, which share one copy of them."""
        placed: dict[str, Any] = {}
        for _, names in self._compiled.values():
            for name in names:
                if name not in placed:
                    if name not in weights:
                        raise BadInput(f"dense weight {name[:64]!r} is missing")
                    placed[name] = self._device.keep(weights[name])
        return {
            bucket: SlotExecutable(bucket, compiled, self._inputs, self._device, [placed[name] for name in names])
            for bucket, (compiled, names) in self._compiled.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class SlotExecutable:
    """A graph that gathers its rows, with its weights.

    Attributes:
        bucket: Rows of a run.
        compiled: The compiled graph.
        inputs: The subgraph's inputs.
        device: The device.
        weights: Its weights on the device.
    """

    bucket: int
    compiled: Any
    inputs: SlotInputs
    device: Device
    weights: Sequence[Any]

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        """Return a run over these buffers."""
        return SlotRun(self, inputs, outputs)


@dataclass(slots=True, eq=False)
class _Argument:
    """An input on the device: the argument of all runs, or what makes that of one run."""

    array: Any
    refill: Callable[[], Any] | None


class SlotRun:
    """A run over bound buffers."""

    def __init__(self, executable: SlotExecutable, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> None:
        self._of, self._inputs = executable, inputs
        own, on = executable.inputs, executable.device
        self._ends = [outputs[name] for name in sorted(outputs)]
        self._handlers = [on.handler(end.shape) for end in self._ends]
        self._arguments = [_Argument(*on.argument(inputs[name])) for name in own.given.inputs]
        # Rows of the host are sent side by side, in places of their own: most runs have none.
        self._lines = inputs[own.name]
        self._nbytes = sum(inputs[name].nbytes for name in own.given.inputs)
        self._packed = {key: aligned((executable.bucket, own.layout.places(key) * key.dim)) for key in own.layout.pools}
        self._packed_arguments = [_Argument(*on.argument(packed)) for packed in self._packed.values()]
        self._blank = [_made(argument) for argument in self._packed_arguments]
        self._at = list(own.given.inputs).index(own.name)

    def __call__(self) -> None:
        """Compute all rows."""
        executable, mirror = self._of, self._of.inputs.mirror
        arguments = [_made(argument) for argument in self._arguments]
        sent = self._blank
        if mirror.partial:
            arguments[self._at], sent = self._sent(arguments[self._at])
        try:
            with mirror.reading() as pools:
                held = [array for key in executable.inputs.layout.pools for array in pools[key].arguments]
                run = executable.compiled.execute_sharded([*arguments, *sent, *held, *executable.weights])
                for result, end in zip(run.consume_with_handlers(self._handlers), self._ends):
                    executable.device.fetch(result, end)
        except Exception as error:
            raise failed(executable.bucket, "xla", error) from error
        mirror.phases.ran(id(self._lines.base))
        mirror.counts.sent_nbytes += self._nbytes

    def _sent(self, argument: Any) -> tuple[Any, list[Any]]:
        """Return lines whose places of the host are places of packed rows, and the packed rows."""
        layout, sent = self._of.inputs.layout, list(self._blank)
        lines: NDArray[np.int32] | None = None
        for n, key in enumerate(layout.pools):
            first, count = layout.first_place(key), layout.places(key)
            own = (self._lines if lines is None else lines).view(np.int32)[:, first : first + count]
            rows, columns = np.nonzero(own < 0)
            if not len(rows):
                continue
            if lines is None:
                lines = aligned(self._lines.shape).view(np.int32)
                lines[...] = self._lines.view(np.int32)
                own = lines[:, first : first + count]
            there = -1 - own[rows, columns]
            host = self._inputs[HOST_ROWS + str(n)].reshape(self._of.bucket * count, key.dim)
            packed = self._packed[key].reshape(-1, key.dim)
            packed[: len(rows)] = host[rows * count + there]
            own[rows, columns] = -1 - np.arange(len(rows), dtype=np.int32)
            sent[n] = _made(self._packed_arguments[n])
        return (argument if lines is None else self._of.device.keep(lines.view(np.float32))), sent


def _made(argument: _Argument) -> Any:
    return argument.array if argument.refill is None else argument.refill()
