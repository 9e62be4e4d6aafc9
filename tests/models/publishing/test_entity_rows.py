"""Features of entities, published, served, undone and compacted: scores equal those of requests that send them."""

import numpy as np
import pytest

from freshet_serving import BadInput, Publisher
from freshet_serving.models.publishing.entity_rows import as_column, entity_rows
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.features.entity_records import make_records
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Input
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.tables.compaction import compact
from tests.processor.backends.artefacts import make_weights
from tests.processor.engines import processors
from tests.support import entities
from tests.support.packages import rows_of

USERS = [0, 3, 7, 12, 1, 1]


@pytest.fixture
def root(tmp_path):
    entities.write_package(tmp_path)
    return tmp_path


def assert_same(processor, generation, contents, users=USERS):
    """A request with the keys alone scores as one that sends what its generation holds, to the bit."""
    alone = processor.process(PredictRequest("small", {"user": np.array(users)}))
    whole = processor.process(PredictRequest("small", entities.sent(users, contents)))
    assert str(alone.generation) == str(whole.generation) == generation
    np.testing.assert_array_equal(alone.outputs["score"], whole.outputs["score"])
    return alone.outputs["score"]


def test_features_rows_and_weights_change_in_one_step(root):
    contents = dict.fromkeys(entities.KNOWN, 0)
    with processors(root) as build:
        processor = build()
        before = assert_same(processor, "1.0", contents)
        publisher = Publisher(root, "small")
        changed = np.array([3, 12])
        publisher.publish(
            rows={"user": (changed, rows_of(changed, 1))},
            dense=make_weights(1),
            entities={"profile": (changed, entities.columns(changed, 1))},
        )
        publisher.publish(removed={entities.TABLE: [0]}, entities={"profile": ([7], entities.columns([7], 2))})
        processor.poll()
        newest = contents | {3: 1, 12: 1, 7: 2}
        del newest[0]
        after = assert_same(processor, "1.2", newest)
        assert (before != after).any()
        processor.rollback("small", Generation.parse("1.1"))
        assert_same(processor, "1.1", contents | {3: 1, 12: 1})
        processor.rollback("small", Generation.parse("1.0"))
        np.testing.assert_array_equal(assert_same(processor, "1.0", contents), before)


def test_features_outlive_compaction_and_a_restart(root):
    publisher = Publisher(root, "small")
    publisher.publish(entities={"profile": ([3, 40], entities.columns([3, 40], 1))}, removed={entities.TABLE: [0]})
    version = Repository(root).version("small")
    assert compact(version, ChangeLog.of(version)) is not None
    contents = dict.fromkeys(entities.KNOWN, 0) | {3: 1, 40: 1}
    del contents[0]
    with processors(root) as build:
        assert_same(build(), "1.1", contents, [*USERS, 40])
    keys, records = publisher.served().table(entities.TABLE)
    assert records.dtype == np.int32
    assert keys.tolist() == [1, 2, 3, 4, 5, 6, 7, 40]


def test_deltas_since_the_base_are_read_back_with_their_bits(root):
    publisher = Publisher(root, "small")
    publisher.publish(entities={"profile": ([3, 40], entities.columns([3, 40], 1))})
    known, records = publisher.served().rows(entities.TABLE, np.array([3, 40, 99]))
    assert known.tolist() == [True, True, False]
    model = publisher.manifest
    np.testing.assert_array_equal(records[:2], entity_rows(model, entities.ENTITY, entities.columns([3, 40], 1), 2))


def test_publisher_makes_the_records_that_the_engine_makes():
    model, given = entities.manifest(), entities.columns(range(50), 4)
    sent = {"tags": Ragged.of(given["tags"]), "floats": given["floats"]}
    np.testing.assert_array_equal(
        entity_rows(model, entities.ENTITY, given, 50), make_records(model, entities.ENTITY, sent, 50)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entities": {"x": ([1], {})}}, "entity 'x' does not exist; the model has profile"),
        ({"entities": {"profile": ([1], {"tags": [[]]})}}, "column 'floats' is missing: records are published whole"),
        ({"entities": {"profile": ([1], entities.columns([1]) | {"x": [1]})}}, "'x' is not one of its columns"),
        ({"entities": {"profile": ([1, 1], entities.columns([1, 1]))}}, "expected distinct keys, got 1 more than once"),
        ({"entities": {"profile": (["a"], entities.columns([1]))}}, "expected integers as keys"),
        ({"entities": {"profile": ([1, 2], entities.columns([1]))}}, "expected 2 lists, got 1 lists"),
        ({"rows": {entities.TABLE: ([1], [[0.0] * 12])}}, "expected its features in entities="),
    ],
)
def test_changes_that_do_not_fit_are_refused(root, change, message):
    publisher = Publisher(root, "small")
    with pytest.raises(BadInput, match=message):
        publisher.publish(**change)
    assert str(publisher.generation) == "1.0"


def test_values_become_columns_of_the_inputs_type():
    assert as_column(Input("x", "string"), np.array(["a", "ä"]), "x").tolist() == [b"a", "ä".encode()]
    assert as_column(Input("x", "float32"), [1, None, 2], "x").dtype == np.float32
    assert isinstance(as_column(Input("x", "string", ragged=True), [["a"], []], "x").values, Strings)
    for spec, values in ((Input("x", "int64"), [1.5]), (Input("x", "string"), [1]), (Input("x", "float32"), ["a"])):
        with pytest.raises(BadInput, match="x: expected"):
            as_column(spec, values, "x")


def test_features_and_model_go_back_without_each_other(root):
    publisher = Publisher(root, "small")
    publisher.publish(rows={"user": ([3], rows_of([3], 1))}, entities={"profile": ([3], entities.columns([3], 1))})
    publisher.publish(
        rows={"user": ([3, 99], rows_of([3, 99], 2))},
        dense=make_weights(2),
        entities={"profile": ([3, 50], entities.columns([3, 50], 2))},
        removed={entities.TABLE: [0]},
    )
    before = publisher.served()
    assert str(publisher.restore("1.1", "entities")) == "1.3"
    contents = dict.fromkeys(entities.KNOWN, 0) | {3: 1}
    with processors(root) as build:
        processor = build()
        assert_same(processor, "1.3", contents, [*USERS, 50])
        np.testing.assert_array_equal(publisher.served().table("user")[1], before.table("user")[1])
        assert str(publisher.restore("1.2", "entities")) == "1.4"
        assert str(publisher.restore("1.0", "model")) == "1.5"
        processor.poll()
        newest = contents | {3: 2, 50: 2}
        del newest[0]
        assert_same(processor, "1.5", newest, [*USERS, 50])
    served = publisher.served()
    np.testing.assert_array_equal(served.table(entities.TABLE)[1], before.table(entities.TABLE)[1])
    assert served.table("user")[0].tolist() == list(range(20))
    np.testing.assert_array_equal(served.table("user")[1], rows_of(range(20), 0))
    for name, weights in make_weights(0).items():
        np.testing.assert_array_equal(served.dense[name], weights)
    assert str(publisher.restore("1.5", "model")) == "1.5"
    with pytest.raises(BadInput, match="only: expected model or entities, got 'x'"):
        publisher.restore("1.1", "x")


def test_column_of_a_declared_uint64_carries_its_bits():
    spec = Input("x", "int64", declared="uint64")
    lists = Input("x", "int64", ragged=True, declared="uint64")
    assert as_column(spec, [5, 2**63, 2**64 - 1], "x").tolist() == [5, -(2**63), -1]
    assert as_column(lists, [[2**63], [5]], "x").values.tolist() == [-(2**63), 5]
    assert as_column(lists, Ragged.of([[2**63], [5]]), "x").values.tolist() == [-(2**63), 5]
    with pytest.raises(BadInput, match="x: expected numbers from 0 to 18446744073709551615, got -1"):
        as_column(spec, [-1], "x")


STRING, STRINGS = Input("tag", "string"), Input("tags", "string", ragged=True)
IDS, FLOAT = Input("ids", "int64", ragged=True), Input("price", "float32")


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (STRING, "abc"), (STRING, b"abc"), (STRING, {"a": 1}), (STRING, {"a", "b"}), (STRING, None), (STRING, 5),
        (STRINGS, "abc"), (STRINGS, ["abc"]), (STRINGS, [5]), (STRINGS, [["a"], "b"]), (STRINGS, [[["a"]]]),
        (IDS, [1]), (IDS, [[None]]), (IDS, ["12"]), (IDS, [[2**63]]), (IDS, [[2**70]]), (IDS, [{1: 2}]),
        (FLOAT, "1"), (FLOAT, ["1"]), (FLOAT, [[1], [2, 3]]), (FLOAT, 5), (FLOAT, {}), (FLOAT, [object()]),
        (Input("id", "int64"), [None]), (Input("id", "int64"), [1.5]),
        (Input("id", "int64"), np.array([2**63], np.uint64)),
    ],
)  # fmt: skip
def test_values_that_are_no_column_are_refused_by_name(spec, values):
    with pytest.raises(BadInput, match=r"^here: (row \d: )?expected "):
        as_column(spec, values, "here")


def test_missing_values_are_those_of_training():
    assert as_column(STRING, ["a", None], "x").tolist() == [b"a", b""]
    assert as_column(STRINGS, [["a", None], None], "x").values.tolist() == [b"a", b""]
    assert as_column(IDS, [None, [3]], "x").row_splits.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(as_column(FLOAT, [None, 2], "x"), np.array([np.nan, 2], np.float32))
