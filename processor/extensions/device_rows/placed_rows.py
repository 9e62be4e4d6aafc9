"""Decide which tables of a version lie on the device that runs it, and open what runs its graphs there.

A version runs on rows of the device if XLA runs all of its buckets on one, in float32, and the package has their
portable forms. Of its tables those lie there that features of one row, or short lists, read; as many as fit into the
bytes that are given, those first that are read most often a byte, and of the next one some rows (hot_rows). All others,
and features that are filled in another way, are filled by the host, in the same lines.

On the host stay tables with a memory budget, whose rows may be on disk; those in a row store; those with a default row
other than zeros whose type is not float32; and records of entities: they hold inputs, which the index needs before
there is anything to gather. The rows that these inputs lead to lie on the device like any other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import Program
from freshet_serving.processor.backends.xla import Device, device
from freshet_serving.processor.counter_block import Slot, Snapshot
from freshet_serving.processor.extensions.device_rows.row_mirror import RowMirror, pool_size, row_nbytes
from freshet_serving.processor.extensions.device_rows.slot_layout import PoolKey, slot_layout
from freshet_serving.processor.extensions.device_rows.slot_program import SlotInput, SlotInputs, SlotProgram
from freshet_serving.processor.features.plan import Pooling, SparsePlan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.package import FEATURES, RECORD, SEQUENCE, Manifest, Subgraph, TableEntry
from freshet_serving.processor.package.subgraphs import subgraphs
from freshet_serving.processor.running import OpenedPrograms, Package
from freshet_serving.processor.running.fillers import Fill
from freshet_serving.processor.running.graph_run import GraphRun, SubgraphRun
from freshet_serving.processor.running.sequence_filler import SequenceFill

log = logging.getLogger("freshet.device_rows")

SUMMED = "whose rows are summed before they are sent"
BLOCK = "device_rows"
NBYTES = Slot(BLOCK, "nbytes", "model_device_rows_bytes", "Memory of rows on the device.", gauge=True)
CHANGED_ROWS = Slot(BLOCK, "changed_rows", "model_device_rows_changed", "Changed rows that were copied to the device.")
CHANGED_NBYTES = Slot(
    BLOCK, "changed_nbytes", "model_device_rows_changed_bytes", "Bytes of changed rows that were copied to the device."
)
SENT_NBYTES = Slot(
    BLOCK, "sent_nbytes", "model_device_rows_sent_bytes", "Bytes of batches that were sent to the device."
)
HOST_ROWS = Slot(
    BLOCK,
    "host_rows",
    "model_device_rows_from_host",
    "Rows that were sent with a batch, as they are not on the device.",
)
MOVED_ROWS = Slot(
    BLOCK,
    "moved_rows",
    "model_device_rows_moved",
    "Rows that took the places of others on the device, as they are read more.",
)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRows:
    """A version's rows on a device, in one process: what fills inputs and what runs, by subgraph."""

    inputs: Mapping[str, SlotInputs]
    programs: Mapping[str, Program]
    mirror: RowMirror

    def load(self, arrays: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        self.mirror.load(arrays)

    def counted(self) -> Snapshot:
        counts = self.mirror.counts
        return {
            NBYTES: self.mirror.nbytes,
            CHANGED_ROWS: counts.changed_rows,
            CHANGED_NBYTES: counts.changed_nbytes,
            SENT_NBYTES: counts.sent_nbytes,
            HOST_ROWS: counts.host_rows,
            MOVED_ROWS: counts.moved_rows,
        }


def open_device_rows(
    files: Package, graphs: GraphRun, plan: SparsePlan, opened: Mapping[str, OpenedPrograms], nbytes: int
) -> DeviceRows | None:
    """Return a version's rows on the device that runs it, within `nbytes`, or None if they stay in memory.

    They do so where the device has no room, or its library refuses what gathers them: the log says why.
    """
    on = _device(opened)
    if on is None:
        return None
    try:
        return _opened(files, graphs, plan, opened, nbytes, on)
    except Exception as error:
        why = str(error).partition("\n")[0][:200]
        log.warning("%s version %d: rows stay in memory: %s", files.manifest.model, files.manifest.version, why)
        return None


def _opened(
    files: Package, graphs: GraphRun, plan: SparsePlan, opened: Mapping[str, OpenedPrograms], nbytes: int, on: Device
) -> DeviceRows | None:
    manifest = files.manifest
    poolings = {name: _poolings(graph, graphs.by_name[name], plan) for name, graph in subgraphs(manifest).items()}
    every = [pooling for by_input in poolings.values() for pooling, _ in by_input.values()]
    placed = placed_rows(manifest.tables, every, nbytes)
    mirror = RowMirror(on, manifest.tables, placed)
    inputs, programs = dict[str, SlotInputs](), dict[str, Program]()
    for name, by_input in poolings.items():
        run, lines = graphs.by_name[name], list[SlotInput]()
        for input_name, (pooling, rest) in by_input.items():
            filled, width = run.spec.inputs[input_name]
            if (layout := slot_layout(pooling, width or 0, manifest.tables, placed)) is not None:
                lines.append(SlotInput(input_name, layout, rest, filled))
        if not lines:
            continue
        inputs[name] = SlotInputs.of(lines, run.spec, mirror, run.fillers)
        program = SlotProgram(inputs[name], on)
        for bucket, entry in opened[name].chosen.items():
            program.compile(bucket, files.file(entry.origin), entry.weights)
        programs[name] = program
    if not inputs:
        return None
    mirror.allocate()
    names = ", ".join(
        table.name if rows == table.rows else f"{rows:,} of {table.rows:,} rows of {table.name}"
        for table, rows in zip(manifest.tables, placed)
        if rows
    )
    log.info("%s version %d: rows on the device: %s", manifest.model, manifest.version, names)
    return DeviceRows(inputs, programs, mirror)


def describe(manifest: Manifest) -> str:
    """Return what a version sends of a row where a GPU runs it; "" for one that no GPU runs, or that runs a stage."""
    if manifest.stage is not None or not any(e.target.startswith("cuda") for e in manifest.executables):
        return ""
    plan = SparsePlan(manifest)
    run = GraphRun(manifest, plan).undivided
    graph = subgraphs(manifest)[run.name]
    placed, tables, before, after = [int(_may_lie(t)) for t in manifest.tables], set[str](), 0, 0
    for name, (pooling, _) in _poolings(graph, run, plan).items():
        width = run.spec.inputs[name][-1] or 0
        layout = slot_layout(pooling, width, manifest.tables, placed)
        before, after = before + 4 * width, after + 4 * (layout.line if layout else width)
        for feature in (slot for together in layout.pools.values() for slot in together) if layout else ():
            tables.add(manifest.tables[pooling.plan[feature.row, pool.TABLE]].name)
    there = f"rows of {len(tables)} of {len(manifest.tables)} tables there"
    stay = Counter(_reason(t) or SUMMED for t in manifest.tables if t.name not in tables)
    why = "; on the host " + ", ".join(f"{count} {reason}" for reason, count in stay.items()) if stay else ""
    return f"{after:,} bytes a row instead of {before:,}, with {there}{why}"


def placed_rows(tables: Sequence[TableEntry], poolings: Sequence[Pooling], room: int) -> list[int]:
    """Return by table how many rows of its file lie on the device: all, some of the first that does not fit, or none.

    What `poolings` read most often a byte comes first; `room` is in bytes.
    """
    every = [int(_may_lie(table)) for table in tables]
    reads = np.zeros(len(tables))
    for pooling in poolings:
        layout = slot_layout(pooling, 0, tables, every)
        for key in layout.pools if layout else ():
            for feature in layout.pools[key] if layout else ():
                reads[pooling.plan[feature.row, pool.TABLE]] += feature.places
    placed, left = [0] * len(tables), room
    sizes = [row_nbytes(PoolKey(t.dtype, t.dim)) if may else 1 for t, may in zip(tables, every)]
    for number in sorted(range(len(tables)), key=lambda n: -reads[n] / max(1, tables[n].rows * sizes[n])):
        if not reads[number]:
            continue
        rows = tables[number].rows
        # Each pool has spare places; each table counts as if it had them alone.
        spare = pool_size(rows) - rows
        placed[number] = max(0, min(rows, left // sizes[number] - spare))
        left -= (placed[number] + spare) * sizes[number] if placed[number] else 0
        if placed[number] < rows:
            break
    return placed


def _may_lie(table: TableEntry) -> bool:
    return not _reason(table)


def _reason(table: TableEntry) -> str:
    if table.dtype == RECORD:
        return "with records of entities"
    if table.dtype != "float32" and any(table.default):
        return f"with a default row that {table.dtype} cannot hold"
    return ""


def _device(opened: Mapping[str, OpenedPrograms]) -> Device | None:
    """Return the device that runs all buckets of all subgraphs in float32 from portable forms; None if none does."""
    entries = [entry for part in opened.values() for entry in part.chosen.values()]
    if any(part.bounded is not None for part in opened.values()):
        return None
    if not all(e.backend == "xla" and e.precision == "float32" and e.origin for e in entries):
        return None
    targets = {entry.target for entry in entries}
    return device(targets.pop(), 1) if len(targets) == 1 and entries[0].target.startswith("cuda") else None


def _poolings(graph: Subgraph, run: SubgraphRun, plan: SparsePlan) -> dict[str, tuple[Pooling, Fill | None]]:
    """Return what fills the inputs of a subgraph that hold rows, by input, and what fills the columns at their end."""
    poolings: dict[str, tuple[Pooling, Fill | None]] = {}
    fills = dict(run.fillers)
    for graph_input in graph.inputs:
        if graph_input.source == FEATURES:
            poolings[graph_input.name] = plan.pooling(graph_input.features), None
        elif graph_input.source == SEQUENCE and isinstance(fill := fills[graph_input.name], SequenceFill):
            poolings[graph_input.name] = fill.columns, fill.fill_seconds
    return poolings
