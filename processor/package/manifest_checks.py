"""Check that the features and the subgraphs of a manifest agree with each other and with the rest of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.combiners import COMBINERS
from freshet_serving.processor.package.manifest_entries import (
    FLOATS,
    KINDS,
    MAX_RANK,
    NAME,
    SCORE,
    SIDES,
    USER,
    WHOLE,
    Feature,
    Input,
    TableEntry,
    feature_width,
)
from freshet_serving.processor.package.sequences import SEQUENCE, dense_sequences
from freshet_serving.processor.package.subgraphs import (
    FEATURES,
    MATRIX,
    USER_TENSOR,
    Described,
    GraphInput,
    GraphOutput,
    batch_symbol,
    role,
    scores_of,
    shorter,
    shorter_lengths,
    subgraphs,
    undivided,
    user_features,
)

MAX_GRAPH_TENSORS, MAX_TENSOR_NUMBERS = 4096, 1 << 24


def want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)


def unique(names: list[str], where: str) -> None:
    """Raise BadInput unless names are plain and distinct; `where` is the field, for the message."""
    for name in names:
        want(
            NAME.fullmatch(name) is not None,
            f"{where}: expected a name of letters, digits, '_', '.', '-', got {name[:64]!r}",
        )
        want(names.count(name) == 1, f"{where}: {name!r} occurs more than once")


def fills(dims: list[int], columns: int) -> bool:
    """Report whether a row of these sizes has exactly `columns` values."""
    return len(dims) < MAX_RANK and min(dims, default=1) > 0 and math.prod(dims) == columns


def validate_graphs(m: Described) -> None:
    """Raise BadInput unless the subgraphs agree with the features, the outputs, each other and the executables."""
    graphs = subgraphs(m)
    names = set(graphs)
    shortened = shorter_lengths(m)
    pairs = {shorter(part, length) for part in (SCORE, USER) for length in shortened}
    want(
        pairs <= names and names - pairs in ([{SCORE, USER, WHOLE}] if pairs else [{SCORE}, {SCORE, USER, WHOLE}]),
        f"manifest.graphs: expected {SCORE!r}, or {SCORE!r}, {USER!r} and {WHOLE!r}, got {sorted(names)[:8]}",
    )
    longest = max((s.max_length for s in dense_sequences(m.sequences)), default=0)
    want(
        all(length < longest for length in shortened),
        f"manifest.graphs: expected histories shorter than {longest}, got {shortened[:8]}",
    )
    users = {f.name for f in user_features(m.features)}
    for name, graph in graphs.items():
        where = f"manifest.graphs[{name}]"
        tensors: list[GraphInput | GraphOutput] = [*graph.inputs, *graph.outputs]
        want(len(graph.inputs) > 0 and len(graph.outputs) > 0, f"{where}: expected inputs and outputs")
        want(len(tensors) <= MAX_GRAPH_TENSORS, f"{where}: expected at most {MAX_GRAPH_TENSORS} tensors")
        unique([t.name for t in tensors], where)
        for t in tensors:
            batch = batch_symbol(USER if isinstance(t, GraphInput) and t.source == USER_TENSOR else name)
            sizes = t.dims[1:]
            want(
                t.dims[:1] == [batch] and bool(sizes) and all(type(n) is int and n > 0 for n in sizes),
                f"{where}[{t.name}].dims: expected [{batch!r}, numbers above 0], got {str(t.dims)[:80]}",
            )
            want(
                len(t.dims) <= MAX_RANK and math.prod(sizes) <= MAX_TENSOR_NUMBERS,
                f"{where}[{t.name}].dims: expected at most {MAX_TENSOR_NUMBERS} numbers",
            )
            want(t.dtype == "float32", f"{where}[{t.name}].dtype: expected float32, got {t.dtype[:40]!r}")
        for i in graph.inputs:
            _validate_graph_input(m, f"{where}[{i.name}]", i, role(name)[1])
        named = graph.features()
        want(len(set(named)) == len(named), f"{where}: expected every feature once")
        actual = [i.name for i in graph.inputs if i.source == SEQUENCE]
        users_part = role(name)[0] == USER
        if m.graphs and (users_part or USER not in graphs):
            expected = [s.name for s in dense_sequences(m.sequences)]
            same = sorted(actual) == sorted(expected)
            want(same, f"{where}: expected the sequences {expected[:8]}, got {actual[:8]}")
        if users_part:
            want(set(named) <= users, f"{where}: expected features of the user alone")
        else:
            want(graph.outputs == scores_of(m), f"{where}.outputs: expected those of manifest.outputs")
    whole = graphs[WHOLE if USER in graphs else SCORE]
    want(whole.inputs[:1] == undivided(m).inputs, f"manifest.graphs: expected {MATRIX!r} with all features")
    sources = {i.source for i in whole.inputs[1:]}
    want(not sources & {FEATURES, USER_TENSOR}, "manifest.graphs: expected features in one input")
    for score in [name for name in sorted(names) if USER in names and role(name)[0] == SCORE]:
        user = shorter(USER, role(score)[1]) if role(score)[1] else USER
        computed = {o.name: o.dims for o in graphs[user].outputs}
        lent = {i.name: i.dims for i in graphs[score].inputs if i.source == USER_TENSOR}
        want(lent == computed, f"manifest.graphs[{score}]: expected the outputs of {user!r} as inputs")
    served = {e.subgraph for e in m.executables}
    want(
        not served or served == names,
        f"manifest.executables: expected some of {', '.join(sorted(names))}, got {', '.join(sorted(served))[:80]}",
    )


def _validate_graph_input(m: Described, where: str, i: GraphInput, length: int) -> None:
    widths = {f.name: f.width for f in m.features}
    want(NAME.fullmatch(i.source) is not None, f"{where}.source: expected a plain name, got {i.source[:40]!r}")
    want(i.source == FEATURES or not i.features, f"{where}.features: expected none for source {i.source}")
    if i.source == SEQUENCE:
        wide = next((s.columns_of(length or s.max_length) for s in m.sequences if s.name == i.name), 0)
        want(i.dims[1:] == [wide], f"{where}.dims: expected {wide} columns, got {str(i.dims)[:80]}")
    if i.source == FEATURES:
        for name in i.features:
            want(name in widths, f"{where}.features: {name[:64]!r} is not among manifest.features")
        width = sum(widths[name] for name in i.features)
        want(i.dims[1:] == [width], f"{where}.dims: expected {width} columns, got {str(i.dims)[:80]}")


def validate_features(
    features: Sequence[Feature], sources: Sequence[Input], rows: Sequence[TableEntry], width: int
) -> None:
    """Raise BadInput unless the features agree with what they read, and fill the dense input without holes."""
    inputs, tables = {i.name: i for i in sources}, {t.name: t for t in rows}
    for f in features:
        where = f"manifest.features[{f.name}]"
        kinds = (*KINDS, FLOATS)
        want(f.kind in kinds, f"{where}.kind: expected one of {', '.join(kinds)}, got {f.kind[:40]!r}")
        want(
            f.combiner in COMBINERS,
            f"{where}.combiner: expected one of {', '.join(COMBINERS)}, got {f.combiner[:40]!r}",
        )
        want(f.side in SIDES, f"{where}.side: expected one of {', '.join(SIDES)}, got {f.side[:40]!r}")
        want(f.input in inputs, f"{where}.input: {f.input[:64]!r} is not among manifest.inputs")
        want(0 <= f.max_length <= 1 << 20, f"{where}.max_length: expected 0 to {1 << 20}, got {f.max_length}")
        source = inputs[f.input]
        dtype = {"float": "float32", FLOATS: "float32", "id": "int64", "ids": "int64"}.get(f.kind, "string")
        want(source.dtype == dtype, f"{where}.input: expected {dtype}, got {source.dtype}")
        if f.kind in ("ids", "strings"):
            want(f.column == -1, f"{where}.column: expected -1 for kind {f.kind}, got {f.column}")
        elif source.columns:
            most = source.columns - (f.width if f.kind == FLOATS else 1)
            want(0 <= f.column <= most, f"{where}.column: expected 0 to {most}, got {f.column}")
        else:
            want(f.column == -1, f"{where}.column: expected -1 for an input of shape [n], got {f.column}")
            want(not source.ragged, f"{where}.input: expected one value per row for kind {f.kind}, got ragged rows")
        if f.kind in ("float", FLOATS):
            wide = f.width if f.kind == FLOATS and source.columns else 1
            fits = f.table == "" and f.width == wide > 0
            want(fits, f"{where}: expected no table and width {max(wide, 1)} for kind {f.kind}")
        else:
            want(f.table in tables, f"{where}.table: {f.table[:64]!r} is not among manifest.tables")
            if f.combiner == "none":
                want(f.kind in ("ids", "strings"), f"{where}.combiner: none requires kind ids or strings, got {f.kind}")
                want(f.max_length > 0, f"{where}.max_length: expected 1 or more for combiner none, got 0")
            wide = feature_width(f.combiner, tables[f.table].dim, f.max_length)
            want(f.width == wide, f"{where}.width: expected {wide}, got {f.width}")
        want(
            f.offset >= 0 and f.offset + f.width <= width,
            f"{where}.offset: expected a place inside the dense width {width}",
        )
    spans = sorted((f.offset, f.offset + f.width) for f in features)
    end = 0
    for start, stop in spans:
        want(
            start == end, f"manifest.features: columns of the dense input overlap or leave a hole at {min(start, end)}"
        )
        end = stop
    want(end == width, f"manifest.width: expected {end}, the columns that features fill, got {width}")
