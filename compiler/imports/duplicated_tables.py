"""Find tables whose rows an imported model holds a second time, where a delta of the table does not reach them.

A delta of a table changes the rows that the engine looks up. A model may read the same variable elsewhere: inside its
stage, whose weights are constants, or as a weight of the dense graph (item embeddings that also score all items). Such
a delta would be half served under the new generation, so the manifest lists these tables and Delta.check() refuses it.

A use of the variable's shape alone (`ids % tf.shape(items)[0]`) reads no rows and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from freshet_serving.compiler.imports.cut import GraphCut
from freshet_serving.compiler.imports.dense_side import weight_names
from freshet_serving.compiler.imports.draft import Draft
from freshet_serving.compiler.imports.embedding_lookups import Lookup
from freshet_serving.compiler.imports.foreign_graph import VARIABLE, ForeignGraph, Ref
from freshet_serving.compiler.imports.pooling import PooledLookup
from freshet_serving.compiler.imports.shapes import Shapes

SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})


def duplicated_tables(cut: GraphCut, draft: Draft, shapes: Shapes, weights: Iterable[str]) -> dict[str, str]:
    """Find the tables that a delta alone cannot change everywhere.

    Args:
        cut: The cut of the model.
        draft: The package drafted from the cut: tables, features, stage.
        shapes: Shapes of the model's graph.
        weights: Names of the dense graph's weights.

    Returns:
        By table, the place of the second copy of its rows: the name of a dense weight, or "" for a constant, which no
            delta can change.
    """
    graph, names, known = shapes.graph, weight_names(shapes.graph), frozenset(weights)
    staged = _variables(graph, draft.stage.refs) if draft.stage else set()
    dense = _variables(graph, (ref for node in cut.dense for ref in node.inputs if ref[0] in shapes.constant))
    found: dict[str, str] = {}
    for port, features in zip(cut.ports, draft.ports):
        lookup = port.how.lookup if isinstance(port.how, PooledLookup) else port.how
        if not isinstance(lookup, Lookup):
            continue
        read = _variables(graph, [lookup.target], stop=[lookup.source])
        weight = sorted(names[v] for v in read & dense)
        if read & staged or not known.issuperset(weight):
            found[features[0].table] = ""
        elif weight:
            found.setdefault(features[0].table, weight[0])
    return found


def notes_of(copies: Mapping[str, str]) -> list[str]:
    """Return the findings of duplicated_tables() as lines of the import report, one a table."""
    return [
        f"table {table!r} changes only together with dense weight {weight!r}, which holds the same rows"
        if weight
        else f"no delta may change table {table!r}: the stage reads its rows too, as constants"
        for table, weight in copies.items()
    ]


def _variables(graph: ForeignGraph, refs: Iterable[Ref], stop: Iterable[Ref] = ()) -> set[str]:
    """Return the variables from which `refs` are computed, ignoring everything above the refs of `stop`."""
    ends, seen, found = set(stop), set[str](), set[str]()
    stack = [ref for ref in refs if ref not in ends]
    while stack:
        node = graph.nodes[stack.pop()[0]]
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.op == VARIABLE:
            found.add(node.name)
        if node.op not in SHAPE_ONLY:
            stack.extend(ref for ref in node.inputs if ref not in ends)
    return found
