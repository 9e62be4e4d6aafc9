"""Run a whole ONNX graph as a package's stage: where an input is of strings, or has rows of any length.

The engine hands such columns to no dense graph, so the graph is computed once a request, before the sparse graph, and
its outputs are the columns of x, which the dense graph passes on. What is no table is constant.

A stage is one ONNX model whose inputs are "input/<name>" and whose outputs "output/<name>". Rows of tables that the
engine looks up (processor.package.stage_entries) are inputs "rows/<name>", and the model picks the rows that its own
tensors have by the number of each value (staged_lookups). One that names external data is refused before ONNX Runtime
sees it. Thread-safe: a session is, and there is no other state.

All stages of a process share an arena of ARENA_NBYTES: a run that needs more is refused, and what a run took is given
back when it ends.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.fed_stage import ROWS, FedStage
from freshet_serving.compiler.imports.feeds import DENSE, PADDED, FeedSpec, feeds_of
from freshet_serving.processor.backends import EndableRun, EndedRun
from freshet_serving.processor.backends.onnxfile import external_weights
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput, Corrupt, TooLarge
from freshet_serving.processor.features.stage import NONE, Limit
from freshet_serving.processor.package import Input, StageLookup

RUNTIME, STAGE_FILE = "onnxruntime", "stage/graph.onnx"
FATAL = 4
SEPARATOR = " "
ARENA_NBYTES = 192 << 20
GROW_AS_REQUESTED = 1
RECURRENT_KEY = "freshet.recurrent"
"""Metadata of a graph with recurrent layers: ONNX Runtime ends the process if one of them has no steps."""
SINGLE_KEY = "freshet.single"
"""Metadata: the inputs that may have one row beside the many of the others (single_rows), joined by SEPARATOR."""
TYPES = {"tensor(string)": np.dtype(object), "tensor(float)": np.dtype(np.float32), "tensor(double)": np.dtype(float)}


class OnnxStage(FedStage):
    """A processor.features.stage.EndableStage in a session of ONNX Runtime, in the arena's bounded memory.

    Attributes:
        single: Inputs whose one row is not repeated for the rows of the others.
    """

    bounded = True

    def __init__(
        self, data: bytes, inputs: Sequence[Input], outputs: Sequence[Input], lookups: Sequence[StageLookup] = ()
    ) -> None:
        if external_weights(data):
            raise Corrupt("stage: expected all values inside the ONNX model, got external data")
        self._session = _session(data, bounded_options())
        nodes = {node.name: node for node in self._session.get_inputs()}
        marks = self._session.get_modelmeta().custom_metadata_map
        self._recurrent = RECURRENT_KEY in marks
        self.single = frozenset(filter(None, marks.get(SINGLE_KEY, "").split(SEPARATOR)))
        fed_inputs = {i.name: _fed(i, nodes[f"input/{i.name}"]) for i in inputs if f"input/{i.name}" in nodes}
        super().__init__(fed_inputs, outputs, lookups)
        expected = {f"input/{name}" for name in self.fed} | {ROWS + name for name in self._rows}
        outputs_made = {node.name for node in self._session.get_outputs()}
        if expected != nodes.keys() or not outputs_made.issuperset(f"output/{o.name}" for o in outputs):
            raise Corrupt("stage: an input or output that the manifest names is missing")

    def run(
        self,
        inputs: Mapping[str, Column],
        rows: int,
        found: Mapping[str, NDArray[np.float32]] = NONE,
        limit: Limit | None = None,
        single: frozenset[str] | None = None,
    ) -> dict[str, Column]:
        """As EndableStage.run(); `single` replaces the stage's own for a trial."""
        once = self.single if single is None else single
        feeds = {node: text_of(array) for node, array in feeds_of(self.fed, inputs, rows, once).items()}
        empty = [name for name, fed in self.fed.items() if fed.kind == PADDED and not feeds[f"input/{name}"].size]
        if self._recurrent and empty:
            raise BadInput(f"input {empty[0]!r}: expected at least one value a row: the model has recurrent layers")
        feeds |= {ROWS + name: found[name] for name in self._rows}
        call = _StageRun(self._session, [f"output/{o.name}" for o in self._outputs], feeds)
        if limit is None:
            call()
        else:
            limit.run(call)
        return {o.name: self._column(o, values, rows) for o, values in zip(self._outputs, call.made)}

    def traced(self, data: bytes) -> TracedOnnxStage:
        return TracedOnnxStage(data, self)

    def _column(self, output: Input, values: Any, rows: int) -> Column:
        column = np.ascontiguousarray(values, np.float32)
        if column.size != rows * (output.columns or 1):
            raise BadInput(
                f"the model returned {column.size} numbers as {output.name!r} for {rows} rows of inputs, expected "
                f"{rows * (output.columns or 1)}"
            )
        return column.reshape((rows, output.columns) if output.columns else rows)


load = OnnxStage
"""What the entry point freshet.stages names, a processor.features.stage.StageRuntime."""


class TracedOnnxStage:
    """A stage, opened once more, whose runs are written down by ONNX Runtime's profiler in a temporary folder."""

    def __init__(self, data: bytes, stage: OnnxStage) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="freshet-trace-")
        options = bounded_options()
        options.enable_profiling, options.profile_file_prefix = True, str(Path(self._folder.name) / "runs")
        self._stage = copy(stage)
        self._stage._session = self._session = _session(data, options)
        self._written: Path | None = None
        # Only StringSplit makes lists of strings, and a session does not list its operators.
        strings = [name for name, fed in stage.fed.items() if fed.dtype.hasobject]
        self.sized_by = frozenset(strings if b"StringSplit" in data else ())

    def run(
        self, inputs: Mapping[str, Column], rows: int, found: Mapping[str, NDArray[np.float32]] = NONE
    ) -> dict[str, Column]:
        return self._stage.run(inputs, rows, found)

    def made(self) -> list[int]:
        """Return the bytes that operators wrote in each run."""
        events = json.loads(self._end().read_bytes())
        runs, nbytes = [], 0
        for event in events:
            if event.get("cat") == "Node":
                nbytes += int(event.get("args", {}).get("output_size", 0))
            elif event.get("name") == "model_run":
                runs.append(nbytes)
                nbytes = 0
        return runs

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> Path:
        if self._written is None:
            self._written = Path(self._session.end_profiling())
        return self._written


class _StageRun(EndableRun):
    __slots__ = ("_feeds", "_names", "_options", "_session", "made")

    def __init__(self, session: Any, names: Sequence[str], feeds: Mapping[str, Any]) -> None:
        self._session, self._names, self._feeds = session, names, feeds
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = FATAL
        self._options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.made: Sequence[Any] = ()

    def __call__(self) -> None:
        try:
            self.made = self._session.run(self._names, self._feeds, self._options)
        except Exception as error:
            if self._options.terminate:
                raise EndedRun("the model did not finish in time for these inputs") from None
            if "bfc_arena" in str(error):
                raise TooLarge(
                    f"max_cells: the model needs more than {ARENA_NBYTES >> 20} MB at once for these inputs; send "
                    "shorter lists"
                ) from None
            raise BadInput("the model refuses these inputs: ONNX Runtime computes nothing for them") from None

    def end(self, now: bool) -> None:
        self._options.terminate = now


@cache
def _bound_memory(nbytes: int) -> None:
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    arena = onnxruntime.OrtArenaCfg({"max_mem": nbytes, "arena_extend_strategy": GROW_AS_REQUESTED})
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory), arena)


def bounded_options(nbytes: int = ARENA_NBYTES, threads: int = 1) -> Any:
    """Return options of a session that uses the arena of this process, of `nbytes` at most."""
    _bound_memory(nbytes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


def _session(data: bytes, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Corrupt(f"stage: refused by ONNX Runtime: {reason_of(error)}") from None


def _fed(spec: Input, node: Any) -> FeedSpec:
    dtype = TYPES.get(node.type)
    if dtype is None:
        dtype = np.dtype(node.type.removeprefix("tensor(").removesuffix(")"))
    dims = tuple(n for n in node.shape[1:] if isinstance(n, int))
    return FeedSpec(spec.name, PADDED if spec.ragged else DENSE, dtype, () if spec.ragged else dims)


def text_of(array: Any) -> Any:
    """Return an array as ONNX Runtime takes it: bytes become str. Raise BadInput if a string is not UTF-8."""
    if not array.dtype.hasobject:
        return array
    try:
        texts = np.empty(array.shape, object)
        texts.ravel()[:] = [value.decode() for value in array.ravel().tolist()]
    except UnicodeDecodeError:
        raise BadInput("inputs: expected strings in UTF-8") from None
    return texts
