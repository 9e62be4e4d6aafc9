"""What each kind of input becomes: the rows of a table, ids or columns of a stage, or a float as it is."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.dense_side import build_dense
from freshet_serving.compiler.imports.embedding_lookups import Lookup
from freshet_serving.compiler.imports.foreign import open_source
from freshet_serving.compiler.imports.importer import Importer
from freshet_serving.compiler.imports.pooling import PooledLookup
from tests.compiler.imports.foreign import saved, variable

IDS = tf.TensorSpec([None], tf.int64, name="ids")
PAIR = tf.TensorSpec([None, 2], tf.int64, name="ids")
WORDS = tf.TensorSpec([None], tf.string, name="words")
FREE = tf.TensorSpec([None, None], tf.int64, name="ids")
THREE = tf.TensorSpec([None, 3], tf.string, name="words")
LIST = tf.RaggedTensorSpec([None, None], tf.int64)


@pytest.fixture
def cut_of(tmp_path):
    """(importer, cut, draft) of a function of (variables, input), rows float32 [10, 4] among the variables."""

    def of(spec, function, **tables):
        class Model(tf.Module):
            def __init__(self):
                self.rows = variable(1, 10, 4, name="rows")
                self.head = variable(2, 4, 1, name="head")
                self.tables = tables

            @tf.function(input_signature=[spec])
            def score(self, value):
                return {"score": function(self, value)}

        module = Model()
        with open_source(saved(module, tmp_path / "model", module.score)) as source:
            importer = Importer(source)
            found = importer.cutter.cut()
            draft = importer.draft(found)
            importer.graph = build_dense(found, importer.shapes, importer.outputs)
        return importer, found, draft

    return of


def vocabulary(**words):
    keys = tf.lookup.KeyValueTensorInitializer(list(words), tf.constant(list(words.values()), tf.int64))
    return tf.lookup.StaticHashTable(keys, 0)


def only(draft):
    (name,) = draft.tables
    spec, (keys, rows) = draft.tables[name]
    return spec, dict(zip(keys.tolist(), rows.tolist()))


def test_gather_by_client_ids_becomes_a_table(cut_of):
    _, found, draft = cut_of(IDS, lambda m, ids: tf.gather(m.rows, ids) @ m.head)
    spec, rows = only(draft)

    assert (spec.name, spec.dim, spec.default) == ("rows", 4, [])
    assert rows == dict(enumerate(variable(1, 10, 4, name="r").numpy().tolist()))
    assert draft.stage is None
    assert [n.op for n in found.dense] == ["MatMul"]


def test_id_matrix_becomes_one_feature_per_column_with_one_table(cut_of):
    _, _, draft = cut_of(PAIR, lambda m, ids: tf.reduce_sum(tf.gather(m.rows, ids), 1) @ m.head)

    assert [(f.name, f.column, f.offset, f.width) for f in draft.features] == [("ids.0", 0, 0, 4), ("ids.1", 1, 4, 4)]
    assert {f.table for f in draft.features} == {"rows"} == draft.tables.keys()


@pytest.mark.parametrize(
    "take",
    [
        lambda ids: ids[:, 1],
        lambda ids: ids[:, 1:],
        lambda ids: tf.split(ids, 2, axis=1)[1],
        lambda ids: tf.unstack(ids, axis=1)[1],
        lambda ids: tf.transpose(ids)[1],
        lambda ids: tf.gather(ids, [1], axis=1),
    ],
)
def test_column_of_an_id_matrix_is_a_client_key(take, cut_of):
    _, _, draft = cut_of(PAIR, lambda m, ids: tf.reshape(tf.gather(m.rows, take(ids)), [-1, 4]) @ m.head)

    assert [(f.kind, f.input, f.column, f.width) for f in draft.features] == [("id", "ids", 1, 4)]
    assert list(draft.tables) == ["rows"]
    assert draft.stage is None


def test_single_column_of_an_id_matrix_is_the_input(cut_of):
    spec = tf.TensorSpec([None, 1], tf.int64, name="ids")
    _, _, draft = cut_of(spec, lambda m, ids: tf.gather(m.rows, ids[:, 0]) @ m.head)
    assert [(f.name, f.input, f.column) for f in draft.features] == [("ids", "ids", -1)]
    assert draft.stage is None


def test_computed_column_is_a_transform_and_not_a_column(cut_of):
    _, _, draft = cut_of(PAIR, lambda m, ids: tf.gather(m.rows, ids[:, 0] * 0 + 1) @ m.head)
    assert [t.op for t in draft.transforms] == ["pick", "multiply", "add"]
    assert [f.input for f in draft.features] == [draft.transforms[-1].name]


def test_vocabulary_words_are_keys_and_others_use_the_default_row(cut_of):
    table = vocabulary(a=3, b=7)
    _, _, draft = cut_of(WORDS, lambda m, w: tf.gather(m.rows, m.tables["t"].lookup(w)) @ m.head, t=table)
    spec, rows = only(draft)
    values = variable(1, 10, 4, name="r").numpy()

    assert sorted(rows.values()) == sorted(values[[3, 7]].tolist())
    np.testing.assert_array_equal(np.float32(spec.default), values[0])
    assert [f.kind for f in draft.features] == ["string"]


def test_computation_depending_only_on_the_key_joins_the_row(cut_of):
    def scaled(m, words):
        rows = tf.gather(m.rows, tf.maximum(m.tables["t"].lookup(words) - 1, 0))
        return tf.strings.length(words)[:, None] * 0 + tf.cast(rows > 0, tf.int32)

    table = vocabulary(a=3, b=7)
    importer, _, draft = cut_of(WORDS, scaled, t=table)
    assert importer.outputs.keys() == {"score"}
    assert draft.stage is not None


def test_id_comparison_becomes_a_mask_table(cut_of):
    _, found, draft = cut_of(PAIR, lambda m, ids: tf.cast(ids != 7, tf.float32))
    spec, rows = only(draft)

    assert rows == {7: [0.0]}
    assert spec.default == [1.0]
    assert [p.dtype for p in found.ports] == [tf.bool]


def test_computed_ids_become_transforms_keying_the_variable_rows(cut_of):
    _, found, draft = cut_of(IDS, lambda m, ids: tf.gather(m.rows, (ids * 7 + 3) % 10) @ m.head)
    _, rows = only(draft)

    assert sorted(rows) == list(range(10))
    assert isinstance(found.ports[0].how, Lookup)
    assert [(t.op, t.integers) for t in draft.transforms] == [("multiply", [7]), ("add", [3]), ("floor_modulo", [10])]
    assert draft.stage is None


def test_column_offsets_make_keys_of_the_sums(cut_of):
    offsets = tf.constant([[0, 5]], tf.int64)
    _, _, draft = cut_of(PAIR, lambda m, ids: tf.reduce_sum(tf.gather(m.rows, ids % 5 + offsets), 1) @ m.head)

    assert [(f.kind, f.input, f.column) for f in draft.features] == [("id", "add.ids", 0), ("id", "add.ids", 1)]
    assert draft.transforms[-1].integers == [0, 5]


def test_two_lookups_of_one_variable_share_a_table(cut_of):
    def both(m, ids):
        first, second = tf.split(ids, 2, axis=1)
        rows = [tf.squeeze(tf.gather(m.rows, part), 1) for part in (first, second)]
        return tf.add_n(rows) @ m.head

    _, _, draft = cut_of(PAIR, both)
    assert list(draft.tables) == ["rows"]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_sparse_lookup_is_pooled_from_client_ids(cut_of, combiner):
    def pooled(m, ids):
        return tf.nn.embedding_lookup_sparse(m.rows, ids.to_sparse(), None, combiner=combiner) @ m.head

    _, found, draft = cut_of(LIST, pooled)
    assert [(f.kind, f.combiner, f.input) for f in draft.features] == [("ids", combiner, "value")]
    assert isinstance(found.ports[0].how, PooledLookup)
    assert draft.stage is None


def test_lookup_of_the_first_ids_is_pooled_from_the_stage(cut_of):
    def first_two(m, ids):
        return tf.nn.safe_embedding_lookup_sparse(m.rows, ids[:, :2].to_sparse(), combiner="sum") @ m.head

    _, _, draft = cut_of(LIST, first_two)
    pools = [f for f in draft.features if f.kind == "ids"]
    assert [f.input.startswith("stage.") for f in pools] == [True]


def test_float_input_is_copied_as_a_block_and_computed_densely(cut_of):
    spec = tf.TensorSpec([None, 4], name="values")
    importer, _, draft = cut_of(spec, lambda m, x: tf.nn.relu(tf.math.log1p(tf.abs(x)) @ m.head))

    assert [(f.kind, f.width, f.input) for f in draft.features] == [("floats", 4, "values")]
    assert importer.graph.weights.keys() == {"head"}
    assert not draft.tables
    assert draft.stage is None


def test_product_of_a_number_and_its_sigmoid_is_dense(cut_of):
    """TensorFlow would make one operation of the two, and the sigmoid could not be looked at."""
    spec = tf.TensorSpec([None, 4], name="values")
    _, found, draft = cut_of(spec, lambda m, x: (x @ m.head) * tf.sigmoid(x @ m.head))
    assert {"Mul", "Sigmoid"} <= {node.op for node in found.dense}
    assert draft.stage is None


def test_gelu_is_computed_in_the_dense_graph_without_erfc(cut_of):
    spec = tf.TensorSpec([None, 4], name="values")
    importer, _, _ = cut_of(spec, lambda m, x: tf.math.erfc(x) @ m.head)
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)

    wanted = tf.math.erfc(x) @ variable(2, 4, 1, name="h")
    np.testing.assert_allclose(importer.graph.run({"x": x})["score"], wanted, atol=1e-6)


@pytest.mark.parametrize("of", ["each row", "one row"])
def test_positions_of_a_free_length_are_looked_up_by_the_stage(of, cut_of):
    def score(m, ids):
        places = tf.range(tf.shape(ids)[1])[None]
        places = tf.tile(places, [tf.shape(ids)[0], 1]) if of == "each row" else places
        return tf.reduce_max(tf.gather(m.rows, ids) + tf.gather(m.tables["places"], places), 1) @ m.head

    _, found, draft = cut_of(FREE, score, places=variable(3, 30, 4, name="places"))

    assert [n.op for n in found.dense] == ["MatMul"]
    assert list(draft.tables) == ["rows", "places"], "positions take deltas, read whole"
    assert [one.spec.input for one in draft.stage.rows] == ["ids"]


@pytest.mark.parametrize("once", [True, False])
def test_tally_of_a_list_is_no_function_of_its_words(once, cut_of):
    """There is one result for each list, and not one for each key."""
    words = vocabulary(**{f"w{i}": i + 1 for i in range(9)})

    def score(m, value):
        places = tf.cast(m.tables["words"].lookup(value), tf.int32)
        tally = tf.math.bincount(places, minlength=10, maxlength=10, axis=-1, binary_output=once, dtype=tf.float32)
        return tally @ m.rows @ m.head

    _, found, draft = cut_of(THREE, score, words=words)

    assert draft.tables == {}
    assert [port.size for port in found.ports] == [10]


def lower(mask, below):
    """keras.ops.tril: which way it is made is a branch."""
    return tf.cond(below < 0, lambda: tf.linalg.band_part(mask, -1, 0), lambda: mask)


def test_branch_over_the_number_of_rows_is_left_to_the_stage(cut_of):
    def score(m, ids):
        pairs = tf.einsum("ni,nj->nij", tf.gather(m.rows, ids), tf.gather(m.rows, ids))
        mask = lower(tf.ones(tf.shape(pairs), tf.bool), tf.constant(-1))
        return tf.reshape(pairs * tf.cast(mask, tf.float32), [-1, 16])

    importer, found, _ = cut_of(IDS, score)

    assert sorted(found.reasons.values()) == ["StatelessIf is not allowed in a dense graph", *["looks up rows"] * 2]
    assert importer.graph.concrete is not None


def test_branch_of_constants_is_a_constant_of_the_dense_graph(cut_of):
    def score(m, ids):
        mask = lower(tf.ones([1, 4], tf.bool), tf.constant(-1))
        return (tf.gather(m.rows, ids) * tf.cast(mask, tf.float32)) @ m.head

    importer, found, draft = cut_of(IDS, score)
    given = np.ones((2, 4), np.float32)

    assert draft.stage is None
    assert {node.op for node in found.dense} == {"Mul", "MatMul"}
    assert importer.graph.run({"x": given})["score"].shape == (2, 1)
