"""Run a package's stage: the part of an imported model that remains a TensorFlow function, on the CPU.

A stage is one GraphDef and nothing else: no variables, no files; constants and contents of tables are inside. Node
names give their roles: "input/<name>..." are placeholders (compiler.imports.feeds); "rows/<name>" are placeholders for
rows of tables that the engine looks up (processor.package.stage_entries); "init/<n>" fill the tables, once;
"output/<name>" are the outputs: a column or matrix, or together with "output/<name>/segments" the values of ragged
rows, each with its row. Nothing is loaded unless every operation is allowed (compiler.imports.ops): a package may come
from an untrusted source.

Thread-safe: a TensorFlow session is, and there is no other state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import quiet, tf
from freshet_serving.compiler.imports.error_reason import reason_of
from freshet_serving.compiler.imports.fed_stage import ROWS, FedStage
from freshet_serving.compiler.imports.feeds import COMPONENTS, DENSE, PADDED, RAGGED, SPARSE, FeedSpec, feeds_of
from freshet_serving.compiler.imports.ops import STAGE, check_ops
from freshet_serving.compiler.imports.stage_sizes import sizing_inputs
from freshet_serving.processor.backends import EndedRun
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.features.stage import NONE, Limit
from freshet_serving.processor.package import Input, StageLookup

THREADS = 2


class TensorFlowStage(FedStage):
    """A processor.features.stage.EndableStage in a TensorFlow session, which does not bound its memory."""

    bounded = False

    def __init__(
        self, data: bytes, inputs: Sequence[Input], outputs: Sequence[Input], lookups: Sequence[StageLookup] = ()
    ) -> None:
        definition = tf.compat.v1.GraphDef()
        try:
            definition.ParseFromString(data)
        except Exception:
            raise Corrupt("stage: not a TensorFlow graph") from None
        nodes = {node.name: node for node in definition.node}
        inner = [node for function in definition.library.function for node in function.node_def]
        called = {function.signature.name for function in definition.library.function}
        check_ops({node.op for node in (*nodes.values(), *inner)} - called, STAGE, "stage")
        fed_inputs = {i.name: fed for i in inputs if (fed := _fed(i, nodes)) is not None}
        super().__init__(fed_inputs, outputs, lookups)
        if any(ROWS + name not in nodes for name in self._rows):
            raise Corrupt("stage: rows that the manifest names are missing")
        fetched = []
        for output in outputs:
            fetched.append(f"output/{output.name}")
            fetched += [f"output/{output.name}/segments"] if output.ragged else []
        for name in fetched:
            if name not in nodes:
                raise Corrupt("stage: an output that the manifest names is missing")
        holder = tf.Graph()
        options = tf.compat.v1.ConfigProto(
            device_count={"GPU": 0}, intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS
        )
        self._session = tf.compat.v1.Session(graph=holder, config=options)
        try:
            with holder.as_default(), quiet():
                tf.graph_util.import_graph_def(definition, name="")
            self._session.run([name for name in nodes if name.startswith("init/")])
            self._nodes = [node for fed in self.fed.values() for node in fed.nodes if node in nodes]
            self._run = self._session.make_callable(
                [f"{name}:0" for name in fetched],
                feed_list=[f"{node}:0" for node in (*self._nodes, *(ROWS + name for name in self._rows))],
                accept_options=True,
            )
        except Exception as error:
            raise Corrupt(f"stage: refused by TensorFlow: {reason_of(error)}") from None

    def run(
        self,
        inputs: Mapping[str, Column],
        rows: int,
        found: Mapping[str, NDArray[np.float32]] = NONE,
        limit: Limit | None = None,
    ) -> dict[str, Column]:
        options = None
        if limit is not None and math.isfinite(limit.left_s):
            # TensorFlow ends a run by itself, between two operations; 0 would be no limit.
            options = tf.compat.v1.RunOptions(timeout_in_ms=max(1, math.ceil(limit.left_s * 1e3)))
        return self._compute(inputs, rows, found, options)

    def traced(self, data: bytes) -> TracedTensorFlowStage:
        return TracedTensorFlowStage(self, sizing_inputs(data, self.fed.values()))

    def _compute(
        self,
        inputs: Mapping[str, Column],
        rows: int,
        found: Mapping[str, NDArray[np.float32]],
        options: Any = None,
        metadata: Any = None,
    ) -> dict[str, Column]:
        feeds = feeds_of(self.fed, inputs, rows)
        arguments = [*(feeds[node] for node in self._nodes), *(found[name] for name in self._rows)]
        try:
            values = iter(self._run(*arguments, options=options, run_metadata=metadata))
        except tf.errors.DeadlineExceededError:
            raise EndedRun("the model did not finish in time for these inputs") from None
        except tf.errors.OpError as error:
            raise BadInput(f"the model refuses these inputs: {reason_of(error)}") from None
        return {o.name: self._column(o, next(values), next(values) if o.ragged else None, rows) for o in self._outputs}

    def _column(self, output: Input, values: Any, segments: Any, rows: int) -> Column:
        if output.dtype == "string":
            column: NDArray[Any] | Strings = Strings.of(values.ravel().tolist())
        else:
            column = np.ascontiguousarray(values, np.dtype(output.dtype))
        if not output.ragged:
            if not isinstance(column, Strings):
                column = column.reshape((-1, output.columns) if output.columns else -1)
            if len(column) != rows * (output.columns or 1 if isinstance(column, Strings) else 1):
                raise BadInput(f"the model returned {len(column)} rows of {output.name!r} for {rows} rows of inputs")
            return column
        segments = np.asarray(segments, np.int64)
        if len(segments) > 1 and (segments[1:] < segments[:-1]).any():
            order = np.argsort(segments, kind="stable")
            segments = segments[order]
            column = Strings.of(values[order].tolist()) if isinstance(column, Strings) else column[order]
        return Ragged(column, np.searchsorted(segments, np.arange(rows + 1)).astype(np.int64))


load = TensorFlowStage
"""What the entry point freshet.stages names, a processor.features.stage.StageRuntime."""


class TracedTensorFlowStage:
    """A stage whose runs TensorFlow traces; values of the inputs `sized_by` say how large tensors are."""

    def __init__(self, stage: TensorFlowStage, sized_by: Collection[str]) -> None:
        self.sized_by = sized_by
        self._stage = stage
        self._nbytes: list[int] = []

    def run(
        self, inputs: Mapping[str, Column], rows: int, found: Mapping[str, NDArray[np.float32]] = NONE
    ) -> dict[str, Column]:
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        traced = tf.compat.v1.RunMetadata()
        columns = self._stage._compute(inputs, rows, found, options, traced)
        outputs = (o for device in traced.step_stats.dev_stats for node in device.node_stats for o in node.output)
        self._nbytes.append(sum(o.tensor_description.allocation_description.requested_bytes for o in outputs))
        return columns

    def made(self) -> list[int]:
        return self._nbytes

    def close(self) -> None:
        """Nothing is left to free: the session is the stage's."""


def _fed(spec: Input, nodes: Mapping[str, Any]) -> FeedSpec | None:
    """Return how an input is fed, by the placeholders that exist for it; None if the stage does not read it."""
    name = f"input/{spec.name}"
    for kind in (SPARSE, RAGGED):
        present = [name + part for part in COMPONENTS[kind] if name + part in nodes]
        if present and (kind == RAGGED or f"{name}/indices" in nodes or f"{name}/shape" in nodes):
            values = nodes.get(f"{name}/values")
            return FeedSpec(spec.name, kind, _dtype(values) if values is not None else np.dtype(np.int64))
    if name not in nodes:
        return None
    dims = [d.size for d in nodes[name].attr["shape"].shape.dim]
    if spec.ragged:
        return FeedSpec(spec.name, PADDED, _dtype(nodes[name]))
    return FeedSpec(spec.name, DENSE, _dtype(nodes[name]), tuple(dims[1:]))


def _dtype(node: Any) -> np.dtype[Any]:
    dtype = tf.as_dtype(node.attr["dtype"].type)
    return np.dtype(object) if dtype == tf.string else np.dtype(dtype.as_numpy_dtype)
