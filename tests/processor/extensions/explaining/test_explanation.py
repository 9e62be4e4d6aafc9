"""An explanation of a row, against what was served and against plain numpy."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput, Conflict, NotReady, Overloaded, TooLarge
from freshet_serving.processor.extensions.explaining import explanation as module
from freshet_serving.processor.extensions.explaining.explanation import (
    DELTA,
    FILE,
    NOWHERE,
    REMOVED,
    Explainer,
    GenerationRef,
    RowOrigin,
    row_origins,
)
from freshet_serving.processor.extensions.remote_rows.remote_table import RemoteTable
from freshet_serving.processor.package import StageEntry, TableDelta, TableEntry
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.tables.compaction import compact
from freshet_serving.processor.tables.table import ServedTable, packed
from freshet_serving.processor.tables.tier import SLOT_BOOKS_NBYTES
from tests.processor.engines import processors, publish
from tests.support.explained import scores_by_hand
from tests.support.leases import unleased
from tests.support.packages import make_inputs, tag_id, write_package
from tests.support.waiting import held_elsewhere

USERS = [0, 3, 900]
TAGS = [["a"], ["b", "zz", "c", "a"], []]


def inputs_of():
    return make_inputs(USERS, tags=TAGS, seed=4)


@pytest.fixture
def processor(root, open_processor):
    """Generation 1.3: rows of each delta, new dense weights with the second."""
    publish(root, 1, users=[3, 900], tags=["a"])
    publish(root, 2, users=[5], dense_seed=1)
    publish(root, 3, users=[3], removed=[0], tags=["zz"])
    return open_processor(undo_depth=2)


@pytest.fixture
def version(processor):
    return processor.host.catalogue["small"].pick()


@pytest.fixture
def explainer():
    return Explainer("a test")


def ids_of(side, feature):
    """What a feature's ids are told to be: where each comes from, without norms."""
    return [
        {key: value for key, value in one.items() if key not in ("norm", "key", "vector")}
        for one in side["inputs"][feature]["ids"]
    ]


def test_explanation_of_a_row_shows_its_inputs_and_scores(processor, version, explainer):
    served = processor.process(PredictRequest("small", inputs_of())).outputs["score"]
    for row in range(len(USERS)):
        told = explainer.explain(inputs_of(), row, GenerationRef(version), vectors=True)
        (side,) = told["sides"]
        assert (told["model"], told["row"], told["rows"]) == ("small", row, 3)
        assert (side["generation"], side["served"], side["computed_by"]) == ("1.3", True, "a test")
        assert side["executable"]["computes"] == "onnxruntime float32"
        np.testing.assert_allclose(side["outputs"]["score"], served[row], atol=1e-6)
        by_hand = scores_by_hand(version.files, version.dense, side)
        np.testing.assert_allclose(by_hand["score"], served[row], atol=1e-6)
        assert side["timings_ms"].keys() == {"bind", "look_up", "pool", "open", "execute"}
        assert "moved" not in told


def test_explanation_shows_where_each_row_of_an_id_comes_from(version, explainer):
    first, second, third = (explainer.explain(inputs_of(), row, GenerationRef(version))["sides"][0] for row in range(3))
    assert ids_of(first, "user") == [{"id": "0", "found": "default", "why": "removed", "step": 3}]
    assert ids_of(first, "tags") == [{"id": "a", "found": "row", "from": "delta", "step": 1}]
    assert ids_of(second, "user") == [{"id": "3", "found": "row", "from": "delta", "step": 3}]
    assert ids_of(second, "tags") == [
        {"id": "b", "found": "row", "from": "version", "step": 0},
        {"id": "zz", "found": "row", "from": "delta", "step": 3},
        {"id": "c", "found": "row", "from": "version", "step": 0},
    ]
    assert second["inputs"]["tags"]["length"] == 4
    assert second["inputs"]["tags"]["ids"][0]["key"] == str(tag_id("b"))
    assert ids_of(third, "user") == [{"id": "900", "found": "row", "from": "delta", "step": 1}]
    assert ids_of(third, "tags") == []
    assert "vector" not in second["inputs"]["tags"]["ids"][0]
    floats = second["inputs"]["f2"]
    assert floats["value"] == inputs_of()["floats"][1, 2]
    np.testing.assert_allclose(floats["fed"], (floats["value"] - 0.5) * 2, rtol=1e-6)


def test_two_generations_are_compared_with_what_moved_the_score(root, version, explainer):
    told = explainer.explain(inputs_of(), 1, GenerationRef(version), GenerationRef(version, 1), vectors=True)
    now, before = told["sides"]
    assert (before["generation"], before["served"]) == ("1.1", False)
    assert ids_of(before, "user") == [{"id": "3", "found": "row", "from": "delta", "step": 1}]
    assert ids_of(before, "tags")[1] == {"id": "zz", "found": "default", "why": "no row"}
    with processors(root) as build:
        older = build().host.catalogue["small"].pick()
        older.rollback(1)
        dense, files = dict(older.dense), older.files
        np.testing.assert_allclose(scores_by_hand(files, dense, before)["score"], before["outputs"]["score"], atol=1e-6)
    np.testing.assert_allclose(told["change"]["score"], now["outputs"]["score"] - before["outputs"]["score"])
    assert {m["what"] for m in told["moved"]} == {"feature user", "feature tags", "dense weights"}
    sizes = [abs(m["score_change"]) for m in told["moved"]]
    assert sizes == sorted(sizes, reverse=True)
    mixed = {**now, "inputs": {**now["inputs"], "user": before["inputs"]["user"]}}
    without = scores_by_hand(version.files, version.dense, mixed)["score"]
    (user,) = [m for m in told["moved"] if m["feature"] == "user"]
    np.testing.assert_allclose(user["score_change"], (now["outputs"]["score"] - without)[0], atol=1e-6)


def test_unavailable_generation_error_says_how_to_load_it(version, explainer):
    assert explainer.reaches(GenerationRef(version))
    assert explainer.reaches(GenerationRef(version, 1))
    assert not explainer.reaches(GenerationRef(version, 0))
    with pytest.raises(
        Conflict, match=r"1\.0 is not in the undo log, which goes back to 1\.1.*--generation 1\.0` scores a table"
    ):
        explainer.explain(inputs_of(), 0, GenerationRef(version), GenerationRef(version, 0))
    with pytest.raises(Conflict, match=r"1\.9 is not served yet; the newest is 1\.3"):
        explainer.explain(inputs_of(), 0, GenerationRef(version, 9))


def test_after_rollback_only_the_served_generation_can_be_explained(processor, version, explainer):
    version.rollback(2)
    (side,) = explainer.explain(inputs_of(), 1, GenerationRef(version))["sides"]
    assert (side["generation"], ids_of(side, "user")[0]["step"]) == ("1.2", 1)
    with pytest.raises(Conflict):
        explainer.explain(inputs_of(), 1, GenerationRef(version, 3))


def test_rows_beyond_the_undo_depth_still_show_their_step(root, open_processor, explainer):
    for step in range(1, 8):
        publish(root, step, users=[step])
    version = open_processor(undo_depth=1).host.catalogue["small"].pick()
    steps = [
        ids_of(explainer.explain(make_inputs([user]), 0, GenerationRef(version))["sides"][0], "user")[0]["step"]
        for user in range(1, 8)
    ]
    assert steps == list(range(1, 8))


def test_forgotten_step_is_shown_as_the_oldest_kept_one(root, open_processor, explainer, monkeypatch):
    monkeypatch.setattr("freshet_serving.processor.versions.served_version.STAMPS", 2)
    for step in range(1, 5):
        publish(root, step, users=[step])
    version = open_processor(undo_depth=1).host.catalogue["small"].pick()
    (side,) = explainer.explain(make_inputs([1]), 0, GenerationRef(version))["sides"]
    assert ids_of(side, "user") == [{"id": "1", "found": "row", "from": "delta", "step": None, "until": 3}]


def test_versions_with_equal_feature_layout_can_be_compared(root, processor, version, explainer):
    write_package(root, 2, users=range(10), seed=3)
    processor.host.load("small", 2)
    newer = processor.host.catalogue["small"].pick(2)
    told = explainer.explain(inputs_of(), 1, GenerationRef(version), GenerationRef(newer))
    assert [side["generation"] for side in told["sides"]] == ["1.3", "2.0"]
    assert "dense weights" in {m["what"] for m in told["moved"]}


def test_explanation_uses_the_bucket_that_the_request_would_run_in(version, explainer):
    for rows in (1, 3, 16):
        (side,) = explainer.explain(make_inputs(range(rows)), rows - 1, GenerationRef(version))["sides"]
        assert side["executable"]["bucket"] in version.replicas.costs.bucket_plan(rows)


def test_unsupported_explanations_are_refused(version, explainer, monkeypatch):
    with pytest.raises(BadInput, match="row: expected 0 to 2, got 3"):
        explainer.explain(inputs_of(), 3, GenerationRef(version))
    infinite = inputs_of()
    infinite["floats"][0, 0] = np.inf
    with pytest.raises(BadInput, match="finite"):
        explainer.explain(infinite, 0, GenerationRef(version))
    with pytest.raises(BadInput, match="is missing"):
        explainer.explain({"user": np.array([1])}, 0, GenerationRef(version))
    monkeypatch.setattr(module, "MAX_IDS", 3)
    with pytest.raises(TooLarge, match="expected a row of at most 3 ids, got 4"):
        explainer.explain(inputs_of(), 1, GenerationRef(version))
    monkeypatch.setattr(module, "MAX_NUMBERS", 10)
    explainer.explain(inputs_of(), 0, GenerationRef(version))
    with pytest.raises(TooLarge, match="vectors"):
        explainer.explain(inputs_of(), 0, GenerationRef(version), vectors=True)


def test_table_in_a_row_store_is_refused_with_one_line(version, explainer):
    version.tables["tag"] = RemoteTable(TableEntry("tag", 4, 3))
    with pytest.raises(BadInput, match="table 'tag' is in a row store"):
        explainer.explain(inputs_of(), 0, GenerationRef(version))


def test_explanation_does_not_change_lookup_or_request_counters(processor, version, explainer):
    before = processor.host.lookups(version).copy()
    explainer.explain(inputs_of(), 1, GenerationRef(version), GenerationRef(version, 1))
    np.testing.assert_array_equal(processor.host.lookups(version), before)
    assert sum(group.work.requests for group in processor.host.group_stats().values()) == 0


def test_concurrent_explanation_or_one_during_a_delta_is_refused(version, explainer, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    for lock, error in ((explainer._turn, Overloaded), (version.lock, NotReady)):
        with held_elsewhere(lock), pytest.raises(error):
            explainer.explain(inputs_of(), 0, GenerationRef(version))
    assert explainer.explain(inputs_of(), 0, GenerationRef(version))["sides"]


def test_explaining_a_version_with_a_damaged_file_is_refused(root, open_processor, explainer):
    path = root / "small" / "1" / "tables" / "user.safetensors"
    with unleased(path):
        version = open_processor().host.catalogue["small"].pick()
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(NotReady, match="damaged"):
        explainer.explain(inputs_of(), 0, GenerationRef(version))


def test_undecodable_strings_are_explained_as_text(version, explainer):
    inputs = inputs_of()
    inputs["tags"] = type(inputs["tags"])(Strings.of([b"\xff"]), np.array([0, 1, 1, 1]))
    (side,) = explainer.explain(inputs, 0, GenerationRef(version))["sides"]
    assert side["inputs"]["tags"]["ids"][0]["id"] == "\\xff"


def test_rows_of_a_snapshot_are_labelled_as_snapshot(root, open_processor, explainer):
    publish(root, 1, users=[3])
    open_processor().close()
    files = Repository(str(root)).version("small", None)
    assert compact(files, ChangeLog.of(files)).step == 1
    version = open_processor().host.catalogue["small"].pick()
    (side,) = explainer.explain(make_inputs([3]), 0, GenerationRef(version))["sides"]
    assert ids_of(side, "user") == [{"id": "3", "found": "row", "from": "snapshot", "step": 1}]


def test_explainer_binds_versions_itself_and_refuses_stages(version, explainer, monkeypatch):
    here = explainer.explain(inputs_of(), 1, GenerationRef(version))["sides"][0]
    monkeypatch.setattr(module, "Replica", type("Elsewhere", (), {}))
    there = explainer.explain(inputs_of(), 1, GenerationRef(version))["sides"][0]
    assert there["inputs"].keys() == here["inputs"].keys()
    assert there["outputs"] == here["outputs"]
    version.manifest = replace(version.manifest, stage=StageEntry("tensorflow", "stage.bin", []))
    with pytest.raises(BadInput, match="only workers run this version's stage"):
        Explainer("another").explain(inputs_of(), 1, GenerationRef(version))


DIM = 4


def table_of(keys, **more):
    keys = np.array(keys, np.int64)
    return ServedTable(TableEntry("t", DIM, len(keys)), packed(keys, np.ones((len(keys), DIM), np.float32)), **more)


def delta(upserts, removed=()):
    keys = np.array(upserts, np.int64)
    return TableDelta(keys, np.full((len(keys), DIM), 2, np.float32), np.array(removed, np.int64))


def origins(table, keys, epoch):
    return row_origins(table, np.array(keys, np.int64), epoch)


def test_row_origin_is_the_file_a_delta_or_nowhere():
    table = table_of([1, 2])
    table.apply(delta([2, 3]), 5)
    assert origins(table, [1, 2, 3, 4], 5) == [
        RowOrigin(FILE),
        RowOrigin(DELTA, 5),
        RowOrigin(DELTA, 5),
        RowOrigin(NOWHERE),
    ]


def test_older_epoch_sees_the_rows_its_deltas_left():
    table = table_of([1, 2])
    table.apply(delta([2, 3]), 1)
    table.apply(delta([3], removed=[1, 2]), 2)
    assert origins(table, [1, 2, 3], 0) == [RowOrigin(FILE), RowOrigin(FILE), RowOrigin(NOWHERE)]
    assert origins(table, [1, 2, 3], 1) == [RowOrigin(FILE), RowOrigin(DELTA, 1), RowOrigin(DELTA, 1)]
    assert origins(table, [1, 2, 3], 2) == [RowOrigin(REMOVED, 2), RowOrigin(REMOVED, 2), RowOrigin(DELTA, 2)]


def test_reclaimed_row_keeps_its_epoch_and_a_removal_does_not():
    table = table_of([1, 2])
    table.retire(table.apply(delta([2], removed=[1]), 1), 2)
    table.reclaim(3, 4)
    assert origins(table, [1, 2], 1) == [RowOrigin(NOWHERE), RowOrigin(DELTA, 1)]


def test_rows_moved_by_a_memory_budget_keep_their_origin(tmp_path):
    table = table_of(range(8), budget_nbytes=2 * (4 * DIM + SLOT_BOOKS_NBYTES), scratch=tmp_path)
    table.retire(table.apply(delta([0, 1, 2]), 1), 2)
    for publish_seq in range(3, 9):
        table.maintain(publish_seq, publish_seq + 1, 0.0)
    moved = origins(table, range(8), 1)
    assert [origin.kind for origin in moved] == [DELTA] * 3 + [FILE] * 5
    assert {origin.epoch for origin in moved[:3]} <= {1, -1}
    assert -1 in {origin.epoch for origin in moved[:3]}, "two slots hold two rows: another is in the log"


def test_table_without_rows_of_its_own_reports_deltas():
    table = RemoteTable(TableEntry("t", DIM, 100))
    table.apply(delta([7]), 1)
    assert origins(table, [7, 8], 1) == [RowOrigin(DELTA, 1), RowOrigin(NOWHERE)]
