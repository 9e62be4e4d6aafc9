"""Find tables whose rows an imported model holds a second time, where a delta of the table does not reach them.

A delta of a table changes the rows that the engine looks up. A model may read the same variable elsewhere: inside its
stage, whose weights are constants, or as a weight of the dense graph (item embeddings that also score all items). Such
a delta would be half served under the new generation, so the manifest lists these tables and Delta.check() refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from freshet_serving.compiler.imports.cut import GraphCut
from freshet_serving.compiler.imports.dense_side import weight_names
from freshet_serving.compiler.imports.draft import Draft
from freshet_serving.compiler.imports.embedding_lookups import Lookup
from freshet_serving.compiler.imports.pooling import PooledLookup
from freshet_serving.compiler.imports.shapes import Shapes
from freshet_serving.compiler.imports.stage_lookups import variables_of


def duplicated_tables(cut: GraphCut, draft: Draft, shapes: Shapes, weights: Iterable[str]) -> dict[str, str]:
    """Return, by table that a delta alone cannot change everywhere, the place of the second copy of its rows.

    That is the name of one of the dense graph's `weights`, or "" for a constant, which no delta can change.
    """
    graph, names, weight_set = shapes.graph, weight_names(shapes.graph), frozenset(weights)
    cut_out = [row.target for row in draft.stage.rows] if draft.stage else []
    staged = variables_of(graph, draft.stage.refs, stop=cut_out) - draft.stage.weights.keys() if draft.stage else set()
    dense = variables_of(graph, (ref for node in cut.dense for ref in node.inputs if ref[0] in shapes.constant))
    copies: dict[str, str] = {}
    for lookup, table in _lookups(cut, draft):
        read = variables_of(graph, [lookup.target], stop=[lookup.source])
        weight = sorted(names[v] for v in read & dense)
        if read & staged or not weight_set.issuperset(weight):
            copies[table] = ""
        elif weight:
            copies.setdefault(table, weight[0])
    return copies


def _lookups(cut: GraphCut, draft: Draft) -> Iterator[tuple[Lookup, str]]:
    for port, features in zip(cut.ports, draft.ports):
        lookup = port.how.lookup if isinstance(port.how, PooledLookup) else port.how
        if isinstance(lookup, Lookup):
            yield lookup, features[0].table
    for row in draft.stage.rows if draft.stage else ():
        yield row.lookup, row.spec.table


def notes_of(copies: Mapping[str, str]) -> list[str]:
    return [
        f"table {table!r} changes only together with dense weight {weight!r}, which holds the same rows"
        if weight
        else f"no delta may change table {table!r}: the stage reads its rows too, as constants"
        for table, weight in copies.items()
    ]
