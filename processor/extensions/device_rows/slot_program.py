"""Run a subgraph whose rows lie on a device: fill lines instead of features, and run the graph that gathers.

It takes the place of a subgraph's programs and of what fills its inputs; sessions, buffers and runners see executables
with other inputs. The inputs are those of the package, with lines in the place of the features (slot_layout), and for
each pool the rows that have no place, which are touched only where there are some.

Costs: what is done for a batch and not for its rows is done in Python, and takes as long as filling 2,000 rows.

Rejected: the user's part and the candidates' as one executable. A divided request has a staging buffer to itself, and
of what a buffer costs the host one run is a seventh (loadtest.bench.device_feed: a device that takes no time). Each
pair of buckets and each shorter length of histories would be one more executable to compile and to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import (
    Dims,
    Executable,
    IoSpec,
    Matrix,
    PartialRun,
    Program,
    Weights,
    aligned,
    check_buffers,
    failed,
)
from freshet_serving.processor.backends.xla import Device, KeptWeights, Refill
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
class SlotInput:
    """One input that is sent as lines; `rest` fills the layout's columns at the end.

    The line's first dimension has `filled` rows: None for those of the run.
    """

    name: str
    layout: SlotLayout
    rest: Fill | None
    filled: int | None

    def host_inputs(self) -> dict[str, Dims]:
        return {self.host_name(key): (self.filled, self.layout.places(key) * key.dim) for key in self.layout.pools}

    def host_name(self, key: PoolKey) -> str:
        """Return the name of the input of rows of one pool that the host sends."""
        return f"{HOST_ROWS}{self.name} {key.dtype} {key.dim}"

    def fill(self, view: BatchView, inputs: Tensors, mirror: RowMirror) -> None:
        lines, layout, sources, left_out = inputs[self.name], self.layout, view.inputs(), None
        if layout.late:
            left_out = fill_left_out(layout.late, view, sources)
        lookups = layout.lookups
        if mirror.partial:
            mirror.phases.fill(id(lines.base))
            lookups, at = lookups.copy(), 0
            for key in layout.pools:
                host = inputs[self.host_name(key)]
                part = slice(at, at + len(layout.pools[key]))
                lookups[part, slot_kernels.HOST], lookups[part, slot_kernels.PITCH] = address(host), host.shape[1] * 4
                at = part.stop
        absent, non_finite = slot_kernels.fill(
            view.tables, mirror.devices, lookups, layout.floats, layout.scaling, sources, view.spans, view.epoch, lines,
            view.counts,
        )  # fmt: skip
        if absent:
            mirror.missed(absent)
        if (others := layout.host) is not None:
            non_finite |= pooling.run(
                view.tables, others.plan, others.scaling, sources, view.spans, view.epoch, lines, view.counts
            )
        if non_finite:
            raise NonFiniteInput("inputs: expected numbers that are finite after scaling")
        if left_out is not None and left_out.refusal is not None:
            raise left_out.refusal
        if self.rest is not None and layout.rest is not None:
            self.rest(view, lines[:, layout.rest.first :])


@dataclass(frozen=True, slots=True, eq=False)
class SlotInputs:
    """Inputs of one subgraph: of the executables (spec), of the package's (given), as lines, and what fills others."""

    lines: Sequence[SlotInput]
    spec: IoSpec
    given: IoSpec
    mirror: RowMirror
    fillers: Sequence[tuple[str, Fill]]

    @classmethod
    def of(
        cls, lines: Sequence[SlotInput], plain_spec: IoSpec, mirror: RowMirror, fillers: Sequence[tuple[str, Fill]]
    ) -> SlotInputs:
        widths: dict[str, Dims] = {line.name: (line.filled, line.layout.line) for line in lines}
        host = {name: dims for line in lines for name, dims in line.host_inputs().items()}
        spec = IoSpec({**plain_spec.inputs, **widths, **host}, plain_spec.outputs)
        return cls(lines, spec, plain_spec, mirror, [(name, fill) for name, fill in fillers if name not in widths])

    def fill(self, view: BatchView, inputs: Tensors) -> None:
        """Write the view's rows into all inputs but the user's tensors.

        Raises NonFiniteInput, and FreshetError if a stage refuses a request, or was not done in time.
        """
        for name, fill in self.fillers:
            if name in inputs:
                fill(view, inputs[name])
        self.mirror.catch_up(view.tables, view.epoch)
        for line in self.lines:
            if line.name in inputs:
                line.fill(view, inputs, self.mirror)


class SlotProgram(Program):
    """A program whose executables gather rows on the device.

    Its buckets are compiled from the package's portable forms when it is made; add() is not for it.
    """

    def __init__(self, inputs: SlotInputs, device: Device) -> None:
        self._inputs, self._device = inputs, device
        self._compiled: dict[int, tuple[Any, Sequence[str]]] = {}

    def compile(self, bucket: int, portable: bytes, weights: Sequence[str]) -> None:
        """Compile one bucket from the dense graph of so many rows, and names of its weights in its order."""
        slot_inputs, names = self._inputs, list(self._inputs.given.inputs)
        layouts = {names.index(line.name): line.layout for line in slot_inputs.lines}
        module = device_modules.gathering(portable, bucket, len(names), layouts, slot_inputs.mirror.sizes)
        self._compiled[bucket] = self._device.compile(module), weights

    def add(self, artefact: Any) -> None:
        raise BadInput(f"executable b{artefact.bucket}: rows on a device are gathered by what is compiled for them")

    def with_weights(self, weights: Weights) -> dict[int, Executable]:
        on_device = KeptWeights(self._device, weights)
        return {
            bucket: SlotExecutable(bucket, compiled, self._inputs, self._device, on_device.arguments(names))
            for bucket, (compiled, names) in self._compiled.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class SlotExecutable:
    """A graph that gathers its rows, with its weights on the device."""

    bucket: int
    compiled: Any
    inputs: SlotInputs
    device: Device
    weights: Sequence[Any]

    def bind_buffers(self, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> Callable[[], None]:
        return SlotRun(self, inputs, outputs)


@dataclass(slots=True, eq=False)
class _Argument:
    """An input on the device: the argument of all runs, or what makes that of one run."""

    array: Any
    refill: Refill | None


class SlotRun(PartialRun):
    """A run over bound buffers; rows that do not count keep lines of earlier runs, and nobody reads their results."""

    def __init__(self, executable: SlotExecutable, inputs: Mapping[str, Matrix], outputs: Mapping[str, Matrix]) -> None:
        self._of, self._inputs, self.rows = executable, inputs, executable.bucket
        slot_inputs, on = executable.inputs, executable.device
        check_buffers(executable.bucket, slot_inputs.spec, inputs, outputs)
        self._ends = [outputs[name] for name in sorted(outputs)]
        self._handlers = [on.handler(end.shape) for end in self._ends]
        names = list(slot_inputs.given.inputs)
        self._arguments = [_Argument(*on.argument(inputs[name])) for name in names]
        # By input the rows to send; 0 for those of the run.
        self._fixed = [0 if None in slot_inputs.spec.inputs[name] else len(inputs[name]) for name in names]
        nbytes = [(inputs[name].nbytes // len(inputs[name]), fixed) for name, fixed in zip(names, self._fixed)]
        self._row_nbytes = sum(row_nbytes for row_nbytes, fixed in nbytes if not fixed)
        self._fixed_nbytes = sum(row_nbytes * fixed for row_nbytes, fixed in nbytes)
        # Rows of the host are sent side by side, in places of their own: most runs have none.
        self._packed: list[tuple[int, SlotInput, PoolKey, Matrix, _Argument]] = []
        for line in slot_inputs.lines:
            for key in line.layout.pools:
                packed = aligned(inputs[line.host_name(key)].shape)
                self._packed.append((names.index(line.name), line, key, packed, _Argument(*on.argument(packed))))
        self._blank = [_made(argument, len(packed)) for *_, packed, argument in self._packed]

    def __call__(self) -> None:
        executable, mirror, rows = self._of, self._of.inputs.mirror, self.rows
        self.rows = executable.bucket
        arguments = [_made(argument, fixed or rows) for argument, fixed in zip(self._arguments, self._fixed)]
        partial = mirror.partial
        sent, host_nbytes = self._sent(arguments, rows) if partial else (self._blank, 0)
        try:
            with mirror.reading() as pools:
                pool_arrays = [array for pool in pools.values() for array in pool.arguments]
                run = executable.compiled.execute_sharded([*arguments, *sent, *pool_arrays, *executable.weights])
                for result, end in zip(run.consume_with_handlers(self._handlers), self._ends):
                    executable.device.fetch(result, end)
        except Exception as error:
            raise failed(executable.bucket, "xla", error) from error
        for line in executable.inputs.lines if partial else ():
            mirror.phases.ran(id(self._inputs[line.name].base))
        mirror.counts.sent_nbytes += self._fixed_nbytes + rows * self._row_nbytes + host_nbytes

    def _sent(self, arguments: list[Any], count: int) -> tuple[list[Any], int]:
        """Send the rows of the host, side by side, and lines that name these in the place of the arguments.

        Returns:
            The arguments of the host's rows, and the bytes that were sent.
        """
        sent, renamed, nbytes = list(self._blank), dict[int, NDArray[np.int32]](), 0
        for n, (at, line, key, packed, argument) in enumerate(self._packed):
            first, places = line.layout.span(key)
            lines = self._inputs[line.name].view(np.int32)
            rows, columns = np.nonzero(lines[: self._fixed[at] or count, first : first + places] < 0)
            if not len(rows):
                continue
            if at not in renamed:
                renamed[at] = aligned(lines.shape).view(np.int32)
                renamed[at][...] = lines
            host_places = -1 - lines[rows, first + columns]
            host = self._inputs[line.host_name(key)].reshape(-1, key.dim)
            packed.reshape(-1, key.dim)[: len(rows)] = host[rows * places + host_places]
            renamed[at][rows, first + columns] = -1 - np.arange(len(rows), dtype=np.int32)
            filled = -(-len(rows) // places)
            sent[n] = _made(argument, filled)
            nbytes += filled * packed[0].nbytes
        for at, lines in renamed.items():
            arguments[at] = self._of.device.keep(lines.view(np.float32))
            nbytes += lines.nbytes
        return sent, nbytes


def _made(argument: _Argument, rows: int) -> Any:
    return argument.array if argument.refill is None else argument.refill(rows)
