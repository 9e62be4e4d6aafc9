"""A request with the keys of entities alone is the same as one with all of their columns, to the bit."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import BufferLayout, ColumnLayout, PackedColumns, Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.bound_request import BatchView, left_out
from freshet_serving.processor.features.entity_records import make_records, missing_columns
from freshet_serving.processor.features.late_values import LateFill, fill_left_out
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels import pool
from freshet_serving.processor.kernels.pool import BY_EXTENSION, SENT
from freshet_serving.processor.package import (
    RECORD,
    EntityEntry,
    Feature,
    Input,
    Manifest,
    TableDelta,
    TableEntry,
    Transform,
    record_layout,
)
from freshet_serving.processor.tables.table import ServedTable, descriptors, packed
from tests.support.packages import manifest

I64, F32 = np.int64, np.float32
DIM = 4
CAPACITY = 5
ENTITY = EntityEntry("item", "item", ["colour", "price", "tags", "shelves", "sizes"], {"tags": 3, "shelves.keys": 10})
COLOURS = ["red", "green", "blue", "", "ä"]


def with_entity(entity=ENTITY) -> Manifest:
    """A model with features of every kind, most of them an entity's."""
    inputs = [
        Input("user", "int64"),
        Input("item", "int64"),
        Input("colour", "string"),
        Input("price", "float32"),
        Input("tags", "string", ragged=True),
        Input("shelves", "int64", ragged=True),
        Input("sizes", "float32", columns=2),
    ]
    transforms = [
        Transform("bucket", "bucketize", ["price"], [], [0.5, 1.5]),
        Transform("shelves.keys", "k_way", ["shelves"], [0, 50, 2], []),
        Transform("colour.number", "farm", ["colour"], [11], []),
    ]
    tables = [
        TableEntry("user", DIM, 0),
        TableEntry("item", DIM, 0),
        TableEntry("colour", DIM, 0, hash_seed=3),
        TableEntry("again", DIM, 0, hash_seed=9),
        TableEntry("tag", DIM, 0, hash_seed=7),
        TableEntry("shelf", DIM, 0),
        TableEntry("bucket", DIM, 0),
    ]
    features = [
        Feature("user", "id", "user", side="user", table="user", width=DIM),
        Feature("item", "id", "item", side="item", table="item", width=DIM),
        Feature("colour", "string", "colour", side="item", table="colour", width=DIM),
        Feature("again", "string", "colour", side="item", table="again", width=DIM),
        Feature("number", "id", "colour.number", side="item", table="bucket", width=DIM),
        Feature("price", "float", "price", side="item", log1p=True, mean=0.25, scale=3.0),
        Feature("bucket", "id", "bucket", side="item", table="bucket", width=DIM),
        Feature("tags", "strings", "tags", side="item", table="tag", combiner="mean", max_length=3, width=DIM),
        Feature("shelves", "ids", "shelves.keys", side="item", table="shelf", combiner="sqrtn", width=DIM),
        Feature("big", "float", "sizes", column=0, side="item"),
        Feature("small", "float", "sizes", column=1, side="item", mean=1.0),
    ]
    placed, offset = [], 0
    for f in features:
        placed.append(dataclasses.replace(f, offset=offset))
        offset += f.width
    plain = dataclasses.replace(
        manifest(), inputs=inputs, transforms=transforms, tables=tables, features=placed, width=offset, dense={},
        executables=[], entities=[entity],
    )  # fmt: skip
    words = record_layout(plain, entity).words
    return dataclasses.replace(plain, tables=[*tables, TableEntry(entity.table, words, 0, RECORD)])


MODEL = with_entity()
PLAN = SparsePlan(MODEL)
ITEMS = 40


def row_of(item, seed):
    """The columns of one item, which depend on it and the seed alone; missing values if it is unknown."""
    if item >= ITEMS:
        return "", np.nan, [], [], [np.nan] * 2
    random = np.random.default_rng((seed, item))
    return (
        COLOURS[random.integers(len(COLOURS))],
        np.nan if random.random() < 0.2 else random.normal(),
        [f"tag{t}" for t in random.integers(0, 9, random.integers(0, 6))],
        random.integers(-5, 99, random.integers(0, CAPACITY + 1)).tolist(),
        random.normal(size=2),
    )


def columns_of(items, seed=0):
    colours, prices, tags, shelves, sizes = zip(*(row_of(int(item), seed) for item in items))
    return {
        "colour": Strings.of(colours),
        "price": np.array(prices, F32),
        "tags": Ragged(Strings.of([t for row in tags for t in row]), np.cumsum([0, *map(len, tags)])),
        "shelves": Ragged(np.array([s for row in shelves for s in row], I64), np.cumsum([0, *map(len, shelves)])),
        "sizes": np.array(sizes, F32).reshape(len(items), 2),
    }


def served(seed=0):
    """Served tables with rows for some ids, and the records of items 0 to ITEMS - 1."""
    tables = []
    for n, spec in enumerate(MODEL.tables):
        if spec.dtype == RECORD:
            keys = np.arange(0, ITEMS, 1, I64)
            rows = make_records(MODEL, ENTITY, columns_of(keys, seed), ITEMS)
        else:
            keys = np.arange(n, 200, 2, I64)
            rows = np.random.default_rng(n).normal(size=(len(keys), spec.dim)).astype(F32)
        tables.append(ServedTable(dataclasses.replace(spec, rows=len(keys)), packed(keys, rows, spec.dtype)))
    return tables


TABLES = served()


def filled(plan, tables, requests, epoch=0, spans=None, fill=None):
    bound = [plan.bind_inputs(inputs) for inputs in requests]
    spans = np.array([(0, b.rows) for b in bound] if spans is None else spans, I64)
    out = np.full((int(spans[:, 1].sum()), plan.width), 7, F32)
    counts = np.zeros((len(tables), 2), I64)
    (fill or plan.fill)(BatchView(descriptors([t.descriptor() for t in tables]), epoch, bound, spans, counts), out)
    return out, counts


def both_ways(items, rows=None):
    """A request with the keys alone, and one with everything."""
    items = np.array(items, I64)
    rows = len(items) if rows is None else rows
    alone = {"user": np.arange(rows, dtype=I64) if rows > 1 else np.array([3], I64), "item": items}
    return alone, alone | columns_of(items)


requests = st.lists(st.lists(st.integers(0, ITEMS + 5), min_size=1, max_size=80), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(requests, st.data())
def test_keys_alone_fill_the_same_matrix_as_all_columns(items, data):
    pairs = [both_ways(some) for some in items]
    spans = []
    for some in items:
        first = data.draw(st.integers(0, len(some) - 1))
        spans.append((first, data.draw(st.integers(1, len(some) - first))))
    alone, counts = filled(PLAN, TABLES, [one for one, _ in pairs], spans=spans)
    whole, sent = filled(PLAN, TABLES, [two for _, two in pairs], spans=spans)
    np.testing.assert_array_equal(alone.view(np.uint32), whole.view(np.uint32))
    np.testing.assert_array_equal(counts[:-1], sent[:-1])
    assert counts[-1, 0] == sum(rows for _, rows in spans)


def test_one_item_is_broadcast_to_all_rows():
    alone, whole = both_ways([5], rows=9)
    one, _ = filled(PLAN, TABLES, [alone], spans=[(4, 3)])
    two, _ = filled(PLAN, TABLES, [whole], spans=[(4, 3)])
    np.testing.assert_array_equal(one, two)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.sampled_from(["price", "tags", "sizes", "colour", "shelves"])))
def test_sent_columns_win(names):
    alone, whole = both_ways([1, 2, 3])
    other = {name: column for name, column in columns_of([7, 8, 9]).items() if name in names}
    one, _ = filled(PLAN, TABLES, [alone | other])
    two, _ = filled(PLAN, TABLES, [whole | other])
    np.testing.assert_array_equal(one, two)


def test_shared_features_are_filled_once():
    alone, whole = both_ways([5], rows=9)
    invariants = [PLAN.row_invariants(PLAN.bind_inputs(inputs), 4) for inputs in (alone, whole)]
    rows = []
    for one in invariants:
        row = np.zeros((1, PLAN.width), F32)
        for step in one.parts:
            step.fill(descriptors([t.descriptor() for t in TABLES]), 0, row, np.zeros((len(TABLES), 2), I64))
        rows.append(row)
        assert not one.varying.late
    np.testing.assert_array_equal(*rows)


def test_some_features_alone_are_filled():
    alone, whole = both_ways([1, 2, 39, 44])
    names = ["tags", "price", "user"]
    one, _ = filled(PLAN, TABLES, [alone], fill=PLAN.pooling(names).fill)
    two, _ = filled(PLAN, TABLES, [whole], fill=PLAN.pooling(names).fill)
    np.testing.assert_array_equal(one, two)
    assert not PLAN.pooling(["user", "item"]).late


def test_records_are_read_at_the_epoch_of_the_batch():
    tables = served()
    changed = np.array([1, 2], I64)
    rows = make_records(MODEL, ENTITY, columns_of(changed, 5), 2)
    tables[-1].apply(TableDelta(changed, rows, np.array([3], I64)), 1)
    alone, before = both_ways([1, 2, 3])
    np.testing.assert_array_equal(filled(PLAN, tables, [alone])[0], filled(PLAN, tables, [before])[0])
    after = alone | columns_of([*changed, ITEMS], 5)
    np.testing.assert_array_equal(filled(PLAN, tables, [alone], epoch=1)[0], filled(PLAN, tables, [after])[0])


@pytest.mark.parametrize("length", [11, 2**40, -1])
def test_forged_length_reads_no_more_than_the_capacity(length):
    changed = np.array([1], I64)

    def scored(lengths):
        tables, rows = served(), make_records(MODEL, ENTITY, columns_of(changed), 1)
        for f in record_layout(MODEL, ENTITY).sources:
            if f.ragged:
                rows[:, f.offset : f.offset + 2] = np.array([lengths(f)], I64).view(np.int32)
        tables[-1].apply(TableDelta(changed, rows, np.empty(0, I64)), 1)
        return filled(PLAN, tables, [both_ways([1, 1])[0]], epoch=1)[0]

    np.testing.assert_array_equal(scored(lambda _: length), scored(lambda f: f.count if length > 0 else 0))


def test_left_out_sources_name_the_entity_until_they_are_filled():
    alone, whole = (PLAN.bind_inputs(one) for one in both_ways([1, 2, 44]))
    (share,) = PLAN.entities
    words, sent = (np.frombuffer(one.words, I64).reshape(-1, pool.INPUT_FIELDS) for one in (alone, whole))
    missing = left_out(words)
    assert share.feeds(np.flatnonzero(missing))
    assert set(words[missing, pool.FILLED_BY].tolist()) == {pool.BY_ENTITY}
    assert (words[missing, pool.STRIDE] > 0).all()
    assert not left_out(sent).any()
    filled_in = PLAN.filled(descriptors([t.descriptor() for t in TABLES]), 0, alone)
    rest = left_out(np.frombuffer(filled_in.words, I64).reshape(words.shape))
    assert not share.feeds(np.flatnonzero(rest))


def test_filled_request_has_the_values_of_the_record():
    alone, whole = both_ways([1, 2, 44])
    bound = PLAN.filled(descriptors([t.descriptor() for t in TABLES]), 0, PLAN.bind_inputs(alone))
    out = np.zeros((3, PLAN.width), F32)
    PLAN.fill(BatchView.of(descriptors([t.descriptor() for t in TABLES]), 0, bound), out)
    np.testing.assert_array_equal(out, filled(PLAN, TABLES, [whole])[0])
    sent = PLAN.bind_inputs(whole)
    for one, two in zip(bound.keep, sent.keep):
        if one.splits is None and one.values.size:
            assert one.values.reshape(-1)[0] == two.values.reshape(-1)[0] or np.isnan(two.values.reshape(-1)[0])


def test_ids_that_records_add_are_counted_and_limited():
    alone, _ = both_ways(range(8))
    bound = PLAN.bind_inputs(alone)
    # Per row: user, item, colour twice, its number, the bucket, up to 3 tags and 10 shelf keys.
    assert bound.ids == 8 * (2 + 2 + 1 + 1 + 3 + 10)
    with pytest.raises(TooLarge, match="max_ids"):
        PLAN.bind_inputs(alone, RequestLimits(max_ids=8 * 5))


def test_floats_of_a_request_without_its_columns_are_finite():
    bound = PLAN.bind_inputs(both_ways([1, 2])[0])
    assert PLAN.non_finite_error(bound) is None
    assert PLAN.largest(bound) == 0


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"user": np.array([1])}, "input 'item' is missing"),
        ({"item": np.array([1])}, "input 'user' is missing"),
        ({"user": np.array([1]), "item": np.array([1]), "x": np.array([1])}, "input 'x' is not one of the model's"),
        ({"user": np.arange(2), "item": np.arange(3)}, "expected 2 rows"),
    ],
)
def test_request_that_nothing_completes_is_refused(inputs, message):
    with pytest.raises(BadInput, match=message):
        PLAN.bind_inputs(inputs)


def test_list_beyond_capacity_is_refused_or_cut_if_unread():
    columns = columns_of([1])
    long = {"tags": Ragged.of([["a", "b", "c", "d"]])}
    cut = {"tags": Ragged.of([["a", "b", "c"]])}
    np.testing.assert_array_equal(
        make_records(MODEL, ENTITY, columns | long, 1), make_records(MODEL, ENTITY, columns | cut, 1)
    )
    with pytest.raises(BadInput, match=r"'shelves.keys': expected lists of at most 10 values, got 12"):
        make_records(MODEL, ENTITY, columns | {"shelves": Ragged.of([[1] * 6])}, 1)


def test_infinite_number_is_refused():
    with pytest.raises(BadInput, match="'price': expected finite numbers"):
        make_records(MODEL, ENTITY, columns_of([1]) | {"price": F32([np.inf])}, 1)


def test_buffer_without_the_columns_is_bound_by_its_layout():
    """Numbers alone, as a binary protocol hands them over: the second request of a layout reads no input."""
    numbers = [f for f in MODEL.features if f.name in ("user", "item", "price", "big", "small")]
    placed, offset = [], 0
    for f in numbers:
        placed.append(dataclasses.replace(f, offset=offset))
        offset += f.width
    entity = EntityEntry("item", "item", ["price", "sizes"], text_nbytes=0)
    model = dataclasses.replace(
        MODEL, inputs=[i for i in MODEL.inputs if i.name in ("user", "item", "price", "sizes")], features=placed,
        transforms=[], entities=[entity], width=offset,
        tables=[*MODEL.tables[:2], TableEntry(entity.table, 4, 0, RECORD)],
    )  # fmt: skip
    plan = SparsePlan(model)
    columns = columns_of(range(ITEMS))
    records = make_records(model, entity, {name: columns[name] for name in entity.inputs}, ITEMS)
    spec = dataclasses.replace(model.tables[2], rows=ITEMS)
    tables = [*TABLES[:2], ServedTable(spec, packed(np.arange(ITEMS), records, RECORD))]
    items = np.array([4, 1, 4], I64)
    data = np.arange(3, dtype=I64).tobytes() + items.tobytes()
    places = (ColumnLayout("user", np.dtype(I64), 3, 0, 0), ColumnLayout("item", np.dtype(I64), 3, 0, 24))
    layout = BufferLayout(places, 48)
    whole = {"user": np.arange(3), "item": items} | {
        name: column for name, column in columns_of(items).items() if name in entity.inputs
    }
    wanted, _ = filled(plan, tables, [whole])
    for _ in range(2):
        got, _ = filled(plan, tables, [PackedColumns(data, 0, layout)])
        np.testing.assert_array_equal(got, wanted)
    # Each has records of its own to keep.
    for first in (0, 8):
        bound = plan.bind_inputs(PackedColumns(bytes(first) + data, first, layout))
        assert bound.used.records == {}
        bound.used.keep()
        described, counts = descriptors([t.descriptor() for t in tables]), np.zeros((3, 2), I64)
        plan.fill(BatchView(described, 0, [bound], np.array([[0, 3]], I64), counts), np.empty((3, plan.width), F32))
        for name, column in bound.used.columns().items():
            np.testing.assert_array_equal(column, whole[name])


KEPT = dataclasses.replace(ENTITY, capacities=ENTITY.capacities | {"shelves": CAPACITY}, text_nbytes=96)


def kept_tables(model, seed=0):
    keys = np.arange(0, ITEMS, 1, I64)
    records = make_records(model, KEPT, columns_of(keys, seed), ITEMS)
    changed = dataclasses.replace(model.tables[-1], rows=ITEMS)
    return [*TABLES[:-1], ServedTable(changed, packed(keys, records, RECORD))]


def plain(name, column):
    """Rows of a column; of tags as far as features read them."""
    if isinstance(column, Ragged):
        flat, splits = column.values.tolist(), column.row_splits.tolist()
        return [flat[a:b][: 3 if name == "tags" else CAPACITY] for a, b in zip(splits, splits[1:])]
    return column.tolist() if isinstance(column, Strings) else np.nan_to_num(column, nan=-99).tolist()


@pytest.mark.parametrize("item", [[5, 999, 7, 5], [6]])
def test_kept_records_give_the_columns_as_they_were_given(item):
    model = with_entity(KEPT)
    plan, items = SparsePlan(model), np.array(item, I64)
    request = {"user": np.arange(4, dtype=I64), "item": items, "price": np.ones(len(item), F32)}
    bound = plan.bind_inputs(request)
    other = plan.bind_inputs(request)
    assert bound.used.nbytes == 4 * model.tables[-1].dim * len(item)
    bound.used.keep()
    tables = kept_tables(model)
    described = descriptors([t.descriptor() for t in tables])
    counts = np.zeros((len(tables), 2), I64)
    # As a session computes a long request: in pieces, each with its own rows.
    for first, rows in ((0, 1), (1, 3)):
        out = np.empty((rows, plan.width), F32)
        plan.fill(BatchView(described, 0, [bound], np.array([[first, rows]], I64), counts), out)
    for name, column in bound.used.columns().items():
        assert plain(name, column) == plain(name, columns_of(item)[name])
    assert bound.used.columns().keys() == {"colour", "tags", "shelves", "sizes"}
    assert other.used.columns() == {}
    assert plan.bind_inputs({**request, **columns_of([0] * len(item))}).used is None


def test_records_without_columns_as_given_keep_nothing():
    bound = PLAN.bind_inputs({"user": np.arange(2, dtype=I64), "item": np.array([1, 2], I64)})
    bound.used.keep()
    assert (bound.used.nbytes, bound.used.columns()) == (0, {})


def test_records_with_columns_as_given_score_the_same():
    model = with_entity(KEPT)
    plan, items = SparsePlan(model), np.arange(8, dtype=I64)
    request = {"user": np.arange(8, dtype=I64), "item": items}
    with_given, _ = filled(plan, kept_tables(model), [request])
    without, _ = filled(PLAN, TABLES, [request])
    np.testing.assert_array_equal(with_given, without)


@pytest.mark.parametrize("policy", ["mark", "drop"])
def test_flags_of_unknown_keys_are_no_lengths_of_lists(policy):
    plan = SparsePlan(with_entity(dataclasses.replace(ENTITY, unknown=policy)))
    bound = plan.bind_inputs({"user": np.arange(3, dtype=I64), "item": np.array([1], I64)})
    # The word behind the flags is somebody else's memory.
    ((_, flags),) = bound.unknown
    longer = np.full(2, 1 << 40, I64)
    words = np.frombuffer(bound.words, I64).copy()
    words[words == flags.ctypes.data] = longer.ctypes.data
    parts = plan.row_invariants(bound._replace(words=words.tobytes()), 1000)
    assert parts.ids < 100
    assert len(parts.parts) == 1


class Late:
    """Values that are filled in late, with a refusal or without."""

    def __init__(self, refusal=None):
        self.refusal, self.calls = refusal, 0

    def fill(self, *_):
        self.calls += 1
        return LateFill(("kept",), self.refusal)


def test_nothing_is_filled_where_nothing_is_left_out():
    late = Late(BadInput("refused"))
    sent = np.array([[[1, 2, 1, 0, SENT], [1, 2, 0, 0, SENT]]], I64)
    assert fill_left_out([late], None, sent) == LateFill((), None)
    assert late.calls == 0


def test_first_of_several_refusals_is_reported():
    several = [Late(), Late(BadInput("first")), Late(BadInput("second"))]
    inputs = np.array([[[1, 2, 1, 0, SENT], [0, 2, 1, 0, BY_EXTENSION]]], I64)
    filled = fill_left_out(several, None, inputs)
    assert str(filled.refusal) == "first"
    assert len(filled.kept) == 3
    assert [one.calls for one in several] == [1, 1, 1]


def test_missing_columns_have_the_shapes_that_inputs_declare():
    sizes, price = (spec for spec in MODEL.inputs if spec.name in ("price", "sizes"))
    missing = missing_columns([Input("pair", "string", columns=2), sizes, price], 3)
    assert len(missing["pair"]) == 6
    assert missing["sizes"].shape == (3, 2)
    assert missing["price"].shape == (3,)
