"""Find the embeddings inside a model's stage whose rows the engine can look up, over rows of any length.

A stage computes what no dense graph can: attention over a free length, recurrent layers, ragged tensors. The rows that
it gathers from a variable are still a function of one key per entry (compiler.imports.embedding_lookups). So the gather
is cut out of the stage's graph: a placeholder with the rows of all keys takes its place, in the shape of the keys.

A variable is cut out only if the stage does not read it in any other way. Otherwise it stays a constant there, and a
table of its rows takes no deltas (compiler.imports.duplicated_tables).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.cut import GATHERS
from freshet_serving.compiler.imports.derived_transforms import TransformDeriver
from freshet_serving.compiler.imports.embedding_lookups import LookupFinder
from freshet_serving.compiler.imports.foreign_graph import VARIABLE, ForeignGraph, ForeignNode, Ref
from freshet_serving.compiler.imports.shapes import Shapes
from freshet_serving.compiler.imports.stage_graph import StageRowsTensor
from freshet_serving.processor.package import StageLookup

SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})


def find_rows(shapes: Shapes, derived: TransformDeriver, refs: Sequence[Ref]) -> list[StageRowsTensor]:
    """Return the tensors of a stage that the engine can fill with rows; their lookups name no table yet."""
    graph, finder = shapes.graph, LookupFinder(shapes)
    filled = []
    for node in graph.ancestors(refs):
        if node.op in GATHERS and _of_rows(node, shapes):
            rows = next(_filled((node.name, 0), shapes, finder, derived), None)
            filled += [rows] if rows is not None else []
    while True:
        left = variables_of(graph, refs, stop=[r.target for r in filled])
        cut_out = [r for r in filled if left.isdisjoint(variables_of(graph, [r.target], stop=[r.lookup.source]))]
        if len(cut_out) == len(filled):
            return filled
        filled = cut_out


def _of_rows(node: ForeignNode, shapes: Shapes) -> bool:
    rows, indices = node.inputs[0][0], node.inputs[1][0]
    fixed = shapes.constant | shapes.free
    return rows in shapes.constant and indices not in fixed and shapes.dtype((node.name, 0)) == tf.float32


def _filled(target: Ref, shapes: Shapes, finder: LookupFinder, derived: TransformDeriver) -> Iterator[StageRowsTensor]:
    """Yield the ways to fill a tensor, by the earliest keys first."""
    for source in finder.sources(target):
        dims = _dims(target, source, shapes)
        if dims is None:
            continue
        lookup = finder.lookup([(target, source)])
        if lookup is None or not lookup.variable or not finder.holds(lookup):
            continue
        name, columns = derived.places(source) if shapes.rows(source) is not None else (derived.values(source), [])
        if name:
            yield StageRowsTensor(StageLookup("", name, "", columns), lookup, dims)


def _dims(target: Ref, source: Ref, shapes: Shapes) -> tuple[int, ...] | None:
    """Return the sizes of a tensor after those of its keys; None if it is not one row per key in their order."""
    dims = set()
    for values in shapes.values:
        if target not in values or source not in values:
            return None
        keys, rows = np.shape(values[source]), np.shape(values[target])
        if rows[: len(keys)] != keys:
            return None
        dims.add(rows[len(keys) :])
    return dims.pop() if len(dims) == 1 else None


def variables_of(graph: ForeignGraph, refs: Iterable[Ref], stop: Iterable[Ref] = ()) -> set[str]:
    """Return the variables from whose values some tensors are computed; what is above the tensors of `stop` is ignored.

    A use of a variable's shape alone (`ids % tf.shape(items)[0]`) reads no rows and does not count.
    """
    ends, seen, variables = set(stop), set[str](), set[str]()
    stack = [ref for ref in refs if ref not in ends]
    while stack:
        node = graph.nodes[stack.pop()[0]]
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.op == VARIABLE:
            variables.add(node.name)
        if node.op not in SHAPE_ONLY:
            stack.extend(ref for ref in node.inputs if ref not in ends)
    return variables
