"""Verify a package against the model's own numbers: the same for every framework. Needs no TensorFlow.

The package's tables, stage and dense graph, run by the code that serves them, must give what the framework gives for
the samples; and a row's outputs must not depend on the other rows, since requests could not be batched otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from freshet_serving.compiler.building.compile import AnyDenseGraph
from freshet_serving.compiler.dense.onnx_dense_graph import Tensors
from freshet_serving.compiler.imports.package_draft import PackageDraft
from freshet_serving.compiler.imports.precision import Precision
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.stage import load_stage
from freshet_serving.processor.package import Manifest, joined
from freshet_serving.processor.running.graph_run import GraphRun
from freshet_serving.processor.tables.table import ServedTable, descriptors

CLOSE = 1e-5
BATCHED = 1e-4
"""Relative tolerance between a row by itself and in a batch: products of other sizes add in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class TriedSample:
    """A request that the model was run on, and what the framework gave for it, [rows, ...], by the package's names."""

    columns: Mapping[str, Column]
    rows: int
    outputs: Mapping[str, Any]


class TriedModel(Protocol):
    """A model that a framework has run on samples; messages say `whose` numbers they are: "TensorFlow's"."""

    @property
    def whose(self) -> str: ...
    @property
    def precision(self) -> Precision: ...

    def tried(self) -> Iterable[TriedSample]:
        """Return the samples."""

    def computed(self, graph: AnyDenseGraph, inputs: Tensors) -> Tensors:
        """Return the outputs of a dense graph of the model; raise BadInput if the framework refuses to compute it."""


def prove(model: TriedModel, draft: PackageDraft[Any], manifest: Manifest) -> dict[str, Any]:
    """Return the samples as a package's dense graph gets them; raise BadInput unless it gives what the model does."""
    plan = SparsePlan(manifest, load_stage(manifest, draft.stage_data) if manifest.stage else None)
    served = [ServedTable(entry, arrays) for entry, arrays in draft.tables.values()]
    matrix = descriptors([table.descriptor() for table in served])
    run = GraphRun(manifest, plan).undivided
    exact = {output.name for output in manifest.outputs if output.exact}
    examples = []
    for sample in model.tried():
        rows = sample.rows
        inputs = run.spec.allocate_inputs(rows)
        run.fill(BatchView.of(matrix, 0, plan.bind_inputs(sample.columns)), inputs)
        examples.append(inputs)
        outputs = model.computed(draft.graph, inputs)
        for name, expected in sample.outputs.items():
            _compare(model, name, outputs[name], np.asarray(expected), name in exact)
    return {name: np.concatenate([inputs[name] for inputs in examples]) for name in draft.graph.inputs}


def _compare(model: TriedModel, name: str, computed: Any, expected: Any, exact: bool) -> None:
    """Raise BadInput unless an output [rows, columns] is the framework's [rows, ...]."""
    rows = len(computed)
    if exact:
        if not np.array_equal(joined(computed), expected.astype(np.int64).reshape(rows, -1)):
            raise BadInput(f"output {name!r} differs from {model.whose}")
        return
    expected = expected.astype(np.float32).reshape(rows, -1)
    if not model.precision.agree(computed, expected, CLOSE, CLOSE):
        worst = float(np.nanmax(np.abs(computed - expected)))
        raise BadInput(f"output {name!r} differs by {worst:.3g} from {model.whose}{model.precision.advice}")


def check_rows_alone(
    precision: Precision, alone: Mapping[str, Any], together: Mapping[str, Any], advice: str = ""
) -> None:
    """Raise BadInput, with some advice, if outputs of rows by themselves are not those that they have among others."""
    for name, outputs in alone.items():
        if not precision.agree(outputs, together[name], BATCHED, CLOSE):
            raise BadInput(
                f"output {name[:64]!r} of a row depends on the other rows: such a model cannot be batched{advice}"
            )
