"""The publisher by itself: what it takes, what it refuses, what lies in the chain afterwards."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from freshet_serving import BadInput, NotFound, ParentRolledBack, Publisher
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import read_delta, write_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.damage import repair
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import make_delta, make_weights, row_of, rows_of, tag_id, write_package

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path):
    return write_package(tmp_path)


@pytest.fixture
def publisher(folder):
    return Publisher(folder.parents[1], "small")


def ledger_of(publisher):
    return ChangeLog.of(Repository(publisher._version.folder.parents[1]).version("small"))


def served(publisher, table="user"):
    keys, rows = Publisher(publisher._version.folder.parents[1], "small").served().table(table)
    return dict(zip(keys.tolist(), rows.tolist()))


def test_publisher_needs_only_numpy():
    code = (
        "import sys\nfrom freshet_serving import Publisher\n"
        "heavy = {'numba', 'tensorflow', 'keras', 'torch', 'onnxruntime', 'xxhash', 'fastapi'}\n"
        "heavy |= {'freshet_serving.processor.engine'}\n"
        "print(Publisher.__name__, *sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "Publisher"


def test_rows_removals_and_weights_form_one_sorted_delta(publisher, folder):
    weights = make_weights(3)
    generation = publisher.publish(
        rows={"user": ([30, 2], rows_of([30, 2], 5)), "tag": (["new", b"a"], rows_of([tag_id("new"), tag_id("a")], 5))},
        removed={"user": [7]},
        dense={"mlp_0/bias": weights["mlp_0/bias"]},
        event_time=(10.0, 20.0),
        events=3,
    )

    assert generation == publisher.generation == Generation(1, 1)
    delta = read_delta(folder / "deltas" / "1.safetensors")
    assert delta.tables["user"].keys.tolist() == [2, 30]
    assert delta.tables["user"].removed.tolist() == [7]
    assert sorted(delta.tables["tag"].keys.tolist()) == sorted([tag_id("new"), tag_id("a")])
    assert (delta.event_time, delta.events, list(delta.dense)) == ((10.0, 20.0), 3, ["mlp_0/bias"])
    now = served(publisher)
    assert now[30] == row_of(30, 5).tolist()
    assert 7 not in now


def test_next_delta_continues_that_of_any_earlier_publisher(publisher):
    publisher.publish(rows={"user": ([1], rows_of([1], 1))})
    other = Publisher(publisher._version.folder.parents[1], "small")
    other.publish(rows={"user": ([2], rows_of([2], 2))})
    assert publisher.publish(rows={"user": ([3], rows_of([3], 3))}) == Generation(1, 3)
    assert ledger_of(publisher).history.line()[-1].step == 3


def test_dropped_file_is_adopted_first(publisher, folder):
    write_delta(folder / "deltas" / "1.safetensors", make_delta(1, [5]))
    assert publisher.publish(rows={"user": ([6], rows_of([6], 2))}) == Generation(1, 2)
    assert served(publisher)[5] == row_of(5, 1).tolist()


def test_empty_change_writes_no_record(publisher, folder):
    assert publisher.publish(rows={"user": ([], np.empty((0, 4)))}, removed={"tag": []}) == Generation(1, 0)
    assert not (folder / "chain").exists()


def test_publisher_without_changes_continues_from_the_served_generation(publisher):
    root = publisher._version.folder.parents[1]
    Publisher(root, "small").publish(rows={"user": ([1], rows_of([1], 1))})
    saved = whole(publisher)

    # A trainer was killed between the publication of this and its checkpoint.
    again = Publisher(root, "small", generation="1.0")
    assert again.publish_difference(saved) == again.generation == Generation(1, 1)
    ledger_of(publisher).rollback(0)
    assert again.undone().rows["user"][0].tolist() == [1]


def test_integers_and_strings_become_the_keys_of_serving(publisher):
    assert publisher.ids("user", np.array([3, 4], np.uint32)).tolist() == [3, 4]
    assert publisher.ids("user", (5,)).tolist() == [5]
    for words in (["a", "b"], [b"a", b"b"], np.array(["a", "b"]), np.array([b"a", "b"], object)):
        assert publisher.ids("tag", words).tolist() == [tag_id("a"), tag_id("b")]
    assert publisher.ids("tag", []).tolist() == []


REFUSED = {
    "an unknown table": (
        {"rows": {"usr": ([1], rows_of([1], 1))}},
        "table 'usr' does not exist; the model has user, tag",
    ),
    "strings for ids": ({"rows": {"user": (["1"], rows_of([1], 1))}}, "table 'user': expected integers as keys"),
    "ids for strings": ({"rows": {"tag": ([1], rows_of([1], 1))}}, "table 'tag': expected strings as keys"),
    "floats for ids": (
        {"removed": {"user": [1.5]}},
        "table 'user': expected integers, str or bytes as keys, got float64",
    ),
    "a key twice": ({"rows": {"user": ([1, 1], rows_of([1, 1], 1))}}, "expected distinct keys, got 1 more than once"),
    "a key in both": (
        {"rows": {"user": ([1], rows_of([1], 1))}, "removed": {"user": [1]}},
        "table 'user': expected distinct keys to publish and to remove, got a key in both",
    ),
    "another width": ({"rows": {"user": ([1], [[1.0, 2.0]])}}, r"expected values of shape \[1, 4\], got \[1, 2\]"),
    "a NaN": ({"rows": {"user": ([7], [[1, 2, 3, np.nan]])}}, "expected finite values, got NaN or infinity for key 7"),
    "beyond float32": ({"rows": {"user": ([7], [[1e300, 0, 0, 0]])}}, "NaN or infinity for key 7"),
    "words as values": ({"rows": {"user": ([7], [["a", "b", "c", "d"]])}}, "table 'user': values: expected numbers"),
    "an unknown weight": ({"dense": {"bias": [0.0]}}, "dense weight 'bias' does not exist; the model has"),
    "a time in milliseconds": (
        {"rows": {"user": ([1], rows_of([1], 1))}, "event_time": (0, 1.7e12)},
        r"delta: event_time: expected seconds since 1970, got 1700000000000.0; milliseconds\?",
    ),
    "a time before all time": (
        {"rows": {"user": ([1], rows_of([1], 1))}, "event_time": (-1e300, 0.0)},
        "delta: event_time: expected seconds since 1970, got -1e",
    ),
    "a last event before the first": (
        {"rows": {"user": ([1], rows_of([1], 1))}, "event_time": (20.0, 10.0)},
        r"event_time: expected the first event no later than the last, got \[20.0, 10.0\]",
    ),
    "events that are none": (
        {"rows": {"user": ([1], rows_of([1], 1))}, "events": -1},
        "delta: events: expected a whole number below",
    ),
    "a weight's shape": (
        {"dense": {"mlp_0/bias": [0.0]}},
        r"dense weight 'mlp_0/bias': expected shape \[\d+\], got \[1\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mismatched_input_is_refused_by_name_and_nothing_published(publisher, folder, case):
    arguments, message = REFUSED[case]
    with pytest.raises(BadInput, match=message):
        publisher.publish(**arguments)
    assert not (folder / "chain").exists()
    assert not list((folder / "deltas").iterdir())


def test_publishing_after_a_rollback_waits_for_restored_rows(publisher):
    for step in (1, 2, 3):
        publisher.publish(
            rows={"user": ([step, 90 + step], rows_of([step, 90 + step], step))},
            dense={"mlp_0/bias": make_weights(step)["mlp_0/bias"]} if step == 3 else None,
        )
    ledger_of(publisher).rollback(1)

    with pytest.raises(ParentRolledBack, match=r"1\.3 was rolled back, 1\.1 is served: call undone\(\)"):
        publisher.publish(rows={"user": ([5], rows_of([5], 5))})
    undone = publisher.undone()

    assert (undone.undone, undone.generation) == (Generation(1, 3), Generation(1, 1))
    keys, rows = undone.rows["user"]
    assert keys.tolist() == [2, 3]
    assert rows.tolist() == rows_of([2, 3], 0).tolist()
    assert undone.removed["user"].tolist() == [92, 93]
    assert {n: a.tolist() for n, a in undone.dense.items()} == {"mlp_0/bias": make_weights(0)["mlp_0/bias"].tolist()}
    assert publisher.undone() is None
    assert publisher.publish(rows={"user": ([5], rows_of([5], 5))}) == Generation(1, 4)
    assert ledger_of(publisher).history.head.parent == ledger_of(publisher).history.known(1).digest


def test_rows_cut_by_a_repair_are_restored(publisher):
    for step in (1, 2, 3):
        publisher.publish(rows={"user": ([step, 90 + step], rows_of([step, 90 + step], step))})
    path = publisher._version.folder / "chain" / "0000000002.json"
    path.write_bytes(path.read_bytes()[:-9])
    repair(ChangeLog(Repository(publisher._version.folder.parents[1]).version("small")), 2)

    with pytest.raises(ParentRolledBack, match=r"1\.3 was rolled back, 1\.1 is served: call undone\(\)"):
        publisher.publish(rows={"user": ([5], rows_of([5], 5))})
    undone = publisher.undone()
    assert (str(undone.generation), str(undone.undone)) == ("1.1", "1.3")
    assert undone.rows["user"][0].tolist() == [2, 3]
    assert undone.removed["user"].tolist() == [92, 93]
    assert str(publisher.publish(rows={"user": ([5], rows_of([5], 5))})) == "1.4"
    assert {key for key in served(publisher) if key >= 90} == {91}


def test_reapplied_undone_delta_needs_no_restoring(publisher):
    publisher.publish(rows={"user": ([1], rows_of([1], 1))})
    change_log = ledger_of(publisher)
    delta = change_log.read_delta(change_log.history.head)
    change_log.rollback(0)
    change_log.publish(delta)
    assert publisher.undone() is None
    assert publisher.publish(rows={"user": ([2], rows_of([2], 1))}) == Generation(1, 2)


def test_rollback_of_a_foreign_delta_needs_no_restoring(publisher):
    publisher.publish(rows={"user": ([1], rows_of([1], 1))})
    other = Publisher(publisher._version.folder.parents[1], "small")
    other.publish(rows={"user": ([2], rows_of([2], 2))})
    ledger_of(publisher).rollback(1)
    assert publisher.undone() is None
    assert publisher.publish(rows={"user": ([3], rows_of([3], 3))}) == Generation(1, 3)


def whole(publisher, changes=None):
    keys, rows = publisher.served().table("user")
    model = dict(zip(keys.tolist(), rows)) | (changes or {})
    model = {key: row for key, row in model.items() if row is not None}
    return {"user": (np.array(list(model)), np.array(list(model.values())))}


def test_difference_contains_only_rows_that_differ(publisher, folder):
    wanted = whole(publisher, {3: row_of(3, 9), 70: row_of(70, 9), 4: None})
    generation = publisher.publish_difference(wanted, make_weights(0) | {"mlp_0/bias": make_weights(1)["mlp_0/bias"]})

    delta = read_delta(folder / "deltas" / "1.safetensors")
    assert generation == Generation(1, 1)
    assert (delta.tables["user"].keys.tolist(), delta.tables["user"].removed.tolist()) == ([3, 70], [4])
    assert list(delta.dense) == ["mlp_0/bias"]
    assert publisher.publish_difference(wanted) == Generation(1, 1)


def test_restart_after_a_rollback_must_name_its_generation(publisher):
    root = publisher._version.folder.parents[1]
    publisher.publish(rows={"user": ([1, 50], rows_of([1, 50], 1))})
    saved, generation = whole(publisher), str(publisher.generation)
    ledger_of(publisher).rollback(0)

    with pytest.raises(ParentRolledBack, match=r"deltas after 1\.0 were rolled back, and none was published since"):
        Publisher(root, "small").publish_difference(saved)
    again = Publisher(root, "small", generation=generation)
    undone = again.undone()
    assert undone.rows["user"][0].tolist() == [1]
    assert undone.removed["user"].tolist() == [50]
    assert again.publish_difference(whole(again)) == Generation(1, 0)
    assert Publisher(root, "small", generation="1.0").publish_difference(saved) == Generation(1, 2)


def test_writer_that_accepts_what_is_served_publishes_after_a_rollback(publisher):
    publisher.publish(rows={"user": ([1], rows_of([1], 1))})
    ledger_of(publisher).rollback(0)
    with pytest.raises(ParentRolledBack):
        publisher.publish(rows={"user": ([1], rows_of([1], 2))})
    assert publisher.accept_served() == publisher.generation == Generation(1, 0)
    assert publisher.publish(rows={"user": ([1], rows_of([1], 2))}) == Generation(1, 2)


def test_start_requires_an_existing_version_and_generation(publisher):
    root = publisher._version.folder.parents[1]
    with pytest.raises(BadInput, match=r"generation: expected a generation of the version, got 1\.7"):
        Publisher(root, "small", generation="1.7")
    with pytest.raises(BadInput, match=r"generation: expected a generation of version 2, got 1\.0"):
        Publisher(root, "small", version=2, generation="1.0")
    with pytest.raises(NotFound, match="model 'large' is not in the repository"):
        Publisher(root, "large")


def test_newest_version_is_published_to_by_default(publisher):
    root = publisher._version.folder.parents[1]
    write_package(root, version=2)
    assert Publisher(root, "small").generation == Generation(2, 0)
    assert Publisher(root, "small", version=1).generation == Generation(1, 0)


@pytest.fixture
def overtaken(publisher, folder, monkeypatch):
    """Let another publisher be faster than the next publication, with the deltas of the list."""
    commit, deltas = ChangeLog.publish, []

    def publish(change_log, delta):
        if deltas and change_log is publisher._change_log:
            rows = deltas.pop(0)
            Publisher(folder.parents[1], "small").publish(**rows)
        return commit(change_log, delta)

    monkeypatch.setattr(ChangeLog, "publish", publish)
    return deltas


def test_difference_overrides_deltas_that_came_meanwhile(publisher, overtaken):
    whole = [1, 2, 3]
    weights = make_weights(4)
    overtaken += [
        {"rows": {"user": ([2, 77], rows_of([2, 77], 9))}, "dense": {"mlp_0/bias": make_weights(8)["mlp_0/bias"]}},
        {"removed": {"user": [3]}},
    ]
    generation = publisher.publish_difference({"user": (whole, rows_of(whole, 5))}, dense=weights)
    assert generation == Generation(1, 3)
    contents = publisher.served()
    keys, rows = contents.table("user")
    assert keys.tolist() == whole
    assert np.array_equal(rows, rows_of(whole, 5))
    assert all(np.array_equal(contents.dense[name], weights[name]) for name in weights)


def test_restored_part_overrides_deltas_that_came_meanwhile(publisher, overtaken):
    publisher.publish(rows={"user": ([1], rows_of([1], 5))})
    before = served(publisher)
    publisher.publish(rows={"user": ([2], rows_of([2], 5))})
    overtaken.append({"rows": {"user": ([1, 88], rows_of([1, 88], 9))}})
    assert publisher.restore("1.1", only="model") == Generation(1, 4)
    assert served(publisher) == before


def test_generation_of_another_version_is_refused(publisher):
    publisher.publish(rows={"user": ([1], rows_of([1], 5))})
    with pytest.raises(BadInput, match=r"generation: expected a generation of version 1, got 7\.0"):
        publisher.restore("7.0", only="model")
