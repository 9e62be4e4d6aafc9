"""One model's life against its folder: versions come and go, deltas arrive whole, broken, early or never."""

import os
import shutil
import threading

import numpy as np
import pytest

from processor.clock import SystemClock
from processor.errors import BadInput, Conflict, Corrupt, FreshetError, NotFound, NotReady, TooLarge
from processor.generation import Generation
from processor.package import repository as repository_module
from processor.package.delta import write_delta
from processor.package.repository import Repository
from processor.tables import table as table_module
from processor.versions import model as model_module
from processor.versions.model import ServedModel
from processor.versions.policy import ModelPolicy
from processor.versions.replica import Replica
from processor.versions.served_version import ServedVersion
from tests.packages import connect, make_delta, make_weights, row_of, write_package

USERS = range(6)
LONG_AGO_S = 1_600_000_000


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path, users=USERS)
    return tmp_path


def open_model(root, undo_depth=4):
    """The model as a server opens it: loaded, with its deltas replayed."""

    def load(reader):
        return ServedVersion(reader, undo_depth, SystemClock())

    served = ServedModel("small", Repository(root), load, connect, SystemClock())
    served.poll()
    return served


def deltas_folder(root, version=1):
    return root / "small" / str(version) / "deltas"


def publish(root, step, users=(0,), version=1, **changes):
    """Writes a delta as the trainer does; returns its path."""
    path = deltas_folder(root, version) / f"{step}.safetensors"
    write_delta(path, make_delta(step, users, version=version, **changes))
    return path


def delta_bytes(tmp_path, *args, **changes):
    path = tmp_path / ".made"
    write_delta(path, make_delta(*args, **changes))
    try:
        return path.read_bytes()
    finally:
        path.unlink()


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def assert_serves(model, generation, changed=(), version=None, dense_seed=0):
    """The generation, and user -> content number of the users that the full version does not hold like that."""
    served = model.pick(version)
    assert str(served.generation) == generation
    tables, dense = served.export()
    wanted = dict.fromkeys(USERS, 0) | dict(changed)
    got = {int(k): tuple(row) for k, row in zip(*tables["user"])}
    assert got == {k: tuple(row_of(k, tag)) for k, tag in wanted.items() if tag is not None}
    for name, weights in make_weights(dense_seed).items():
        np.testing.assert_array_equal(dense[name], weights)


@pytest.fixture
def reads(monkeypatch):
    """Names of the delta files that were opened, in order."""
    seen, read = [], model_module.read_delta

    def watch(path):
        seen.append(path.name)
        return read(path)

    monkeypatch.setattr(model_module, "read_delta", watch)
    return seen


# Versions


def test_the_newest_version_is_served_and_older_ones_stay_on_disk(root):
    write_package(root, 2, users=USERS)
    write_package(root, 10, users=USERS)
    model = open_model(root)
    assert list(model.served) == [10]
    assert [(s.version, s.state) for s in model.status()] == [(10, "AVAILABLE")]
    with pytest.raises(NotFound, match="version 2 of model 'small' is not loaded"):
        model.pick(2)


def test_a_model_without_a_version_is_not_ready(tmp_path):
    (tmp_path / "small").mkdir()
    model = open_model(tmp_path)
    assert not model.ready
    with pytest.raises(NotReady, match="no version of model 'small' is loaded"):
        model.pick()


def test_a_new_version_takes_over_with_its_own_deltas_and_the_old_one_goes(root):
    model = open_model(root)
    publish(root, 1)
    model.poll()
    write_package(root, 2, users=USERS)
    publish(root, 1, [1], version=2, tag=7)
    assert model.poll() == ["small 2.1 loaded", "small version 1 unloaded"]
    assert_serves(model, "2.1", {1: 7})
    assert [(s.version, s.state) for s in model.status()] == [(2, "AVAILABLE"), (1, "END")]
    assert model.poll() == []


def test_an_older_version_that_appears_later_is_not_loaded(root):
    write_package(root, 3, users=USERS)
    model = open_model(root)
    write_package(root, 2, users=USERS)
    assert model.poll() == []
    assert list(model.served) == [3]


def damage(folder):
    path = folder / "dense.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def test_a_broken_version_is_refused_once_and_the_one_that_serves_goes_on(root, monkeypatch):
    model = open_model(root)
    damage(write_package(root, 2, users=USERS))
    (line,) = model.poll()
    assert line == "small version 2 refused: dense.safetensors: does not match its checksum"
    assert_serves(model, "1.0")
    assert [(s.version, s.state, s.error) for s in model.status()] == [
        (2, "END", "dense.safetensors: does not match its checksum"),
        (1, "AVAILABLE", ""),
    ]
    monkeypatch.setattr(model, "_load", lambda reader: pytest.fail("a refused version was tried again"))
    for _ in range(3):
        assert model.poll() == []


def test_a_broken_version_is_served_once_it_was_published_anew(root):
    model = open_model(root)
    folder = write_package(root, 2, users=USERS)
    damage(folder)
    model.poll()
    shutil.rmtree(folder)
    write_package(root, 2, users=USERS)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert_serves(model, "2.0")


def test_a_half_built_version_is_never_touched(root, monkeypatch):
    model = open_model(root)
    shutil.copytree(root / "small" / "1", root / "small" / ".2.abcd.tmp")
    (root / "small" / "3").mkdir()
    monkeypatch.setattr(model, "_load", lambda reader: pytest.fail("an unfinished version was opened"))
    assert model.poll() == []


def test_a_version_that_fails_in_an_unforeseen_way_is_refused_without_its_inner_words(root, monkeypatch, caplog):
    model = open_model(root)
    caplog.set_level("CRITICAL", logger="freshet.model")

    def explode(reader):
        raise ZeroDivisionError("/secret")

    monkeypatch.setattr(model, "_load", explode)
    write_package(root, 2, users=USERS)
    assert model.poll() == ["small version 2 refused: the version could not be loaded; the server's log says why"]
    assert_serves(model, "1.0")


def test_a_version_behind_a_link_that_leads_out_is_refused_and_the_others_go_on(root, tmp_path_factory):
    outside = write_package(tmp_path_factory.mktemp("outside"), 2, users=USERS)
    model = open_model(root)
    (root / "small" / "2").symlink_to(outside)
    publish(root, 1)
    first, second = model.poll()
    assert first == "small version 2 refused: path: a file inside the repository wanted"
    assert second == "small 1.1 served"
    assert model.poll() == []


def test_nothing_is_listed_or_opened_while_nothing_changes(root, monkeypatch):
    publish(root, 1)
    model = open_model(root)
    for folder in (root / "small", deltas_folder(root)):
        os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    model.poll()
    monkeypatch.setattr(repository_module.os, "scandir", lambda path: pytest.fail("a folder was listed"))
    assert model.poll() == []


# Load, unload, labels


def test_a_version_loaded_by_hand_stays_beside_the_newest(root):
    write_package(root, 2, users=USERS)
    model = open_model(root)
    model.load(1)
    write_package(root, 3, users=USERS)
    assert model.poll() == ["small 3.0 loaded", "small version 2 unloaded"]
    assert sorted(model.served) == [1, 3]
    assert model.pick().generation == Generation(3, 0)


def test_a_version_loaded_by_hand_while_it_serves_anyway_stays_when_a_newer_one_comes(root):
    model = open_model(root)
    model.load(1)
    write_package(root, 2, users=USERS)
    model.poll()
    assert sorted(model.served) == [1, 2]


def test_deltas_reach_every_loaded_version(root):
    write_package(root, 2, users=USERS)
    model = open_model(root)
    model.load(1)
    publish(root, 1, [1], tag=5)
    publish(root, 1, [2], version=2, tag=6)
    assert model.poll() == ["small 1.1 served", "small 2.1 served"]
    assert_serves(model, "1.1", {1: 5}, version=1)
    assert_serves(model, "2.1", {2: 6}, version=2)


def test_loading_what_is_not_there_or_broken_is_refused(root):
    model = open_model(root)
    with pytest.raises(NotFound, match="version 9 of model 'small' is not in the repository"):
        model.load(9)
    write_package(root, 3, users=USERS)
    damage(write_package(root, 2, users=USERS))
    with pytest.raises(Corrupt, match="checksum"):
        model.load(2)
    assert sorted(model.served) == [1]


def test_an_unloaded_version_is_not_loaded_again_until_somebody_asks(root):
    write_package(root, 2, users=USERS)
    model = open_model(root)
    model.load(1)
    model.unload(2)
    assert model.poll() == []
    assert model.pick().generation == Generation(1, 0)
    with pytest.raises(NotFound, match="version 2 of model 'small' is not loaded"):
        model.unload(2)
    model.load(2)
    assert model.pick().generation == Generation(2, 0)


def test_a_label_is_kept_over_a_restart_and_holds_its_version(root):
    model = open_model(root)
    model.set_label("stable", 1)
    write_package(root, 2, users=USERS)
    model.poll()
    for opened in (model, open_model(root)):
        assert sorted(opened.served) == [1, 2]
        assert opened.labels == {"stable": 1}
        assert opened.pick(label="stable").generation == Generation(1, 0)
        assert opened.pick().generation == Generation(2, 0)


def test_a_label_loads_the_old_version_that_it_names(root):
    write_package(root, 2, users=USERS)
    publish(root, 1, [3], tag=9)
    model = open_model(root)
    model.set_label("previous", 1)
    assert_serves(model, "1.1", {3: 9}, version=1)


def test_a_labelled_version_cannot_be_unloaded_and_goes_when_its_label_moves_on(root):
    model = open_model(root)
    model.set_label("stable", 1)
    model.set_label("canary", 1)
    write_package(root, 2, users=USERS)
    model.poll()
    with pytest.raises(Conflict, match="version 1 is held by label canary, stable; move the label first"):
        model.unload(1)
    model.set_label("stable", 2)
    model.set_label("canary", 2)
    assert model.poll() == ["small version 1 unloaded"]
    assert model.pick(label="canary").generation == Generation(2, 0)


def test_a_label_that_cannot_be_set_changes_nothing(root, monkeypatch):
    model = open_model(root)
    for label in ("", "a/b", "..", "a" * 129):
        with pytest.raises(BadInput, match="label: letters"):
            model.set_label(label, 1)
    with pytest.raises(NotFound, match="version 7"):
        model.set_label("stable", 7)

    def refuse(*_):
        raise NotReady("labels: the repository cannot be written")

    monkeypatch.setattr(model._repository, "keep_labels", refuse)
    with pytest.raises(NotReady):
        model.set_label("stable", 1)
    assert model.labels == {}
    with pytest.raises(NotFound, match="label 'stable' of model 'small' is not set"):
        model.pick(label="stable")


# Deltas that lie in the folder


def test_a_delta_file_is_served_at_the_next_look(root):
    model = open_model(root)
    publish(root, 1, [1, 50], removed=[2], tag=3, dense_seed=8)
    assert model.poll() == ["small 1.1 served"]
    assert_serves(model, "1.1", {1: 3, 50: 3, 2: None}, dense_seed=8)
    publish(root, 2, [2], tag=4)
    publish(root, 3, [3], tag=5)
    assert model.poll() == ["small 1.2 served", "small 1.3 served"]
    assert_serves(model, "1.3", {1: 3, 50: 3, 2: 4, 3: 5}, dense_seed=8)


def test_a_restart_replays_the_whole_chain(root):
    model = open_model(root, undo_depth=2)
    for step in range(1, 9):
        publish(root, step, [step], tag=step, dense_seed=step if step in (3, 5) else None)
        model.poll()
    wanted = {step: step for step in range(1, 9)}
    for opened in (model, open_model(root, undo_depth=2)):
        assert_serves(opened, "1.8", wanted, dense_seed=5)
        assert opened.pick().chain.undoable == [6, 7]


def test_a_hidden_temporary_file_is_never_opened(root, reads):
    model = open_model(root)
    path = publish(root, 1)
    half = path.with_name(".2.safetensors.a1b2c3d4.tmp")
    half.write_bytes(path.read_bytes()[:100])
    path.with_name("2.safetensors.part").write_bytes(b"half")
    assert model.poll() == ["small 1.1 served"]
    assert model.poll() == []
    assert reads == ["1.safetensors"]


def test_a_corrupt_delta_is_refused_once_and_served_once_it_is_replaced_by_a_good_one(root, reads):
    model = open_model(root)
    publish(root, 1)
    model.poll()
    path = publish(root, 2, [1], tag=6)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    (line,) = model.poll()
    assert line.startswith("small delta 2 refused: delta: tensor ")
    assert [model.poll() for _ in range(3)] == [[], [], []]
    assert reads.count("2.safetensors") == 1
    assert str(model.pick().generation) == "1.1"
    publish(root, 2, [1], tag=6)
    assert model.poll() == ["small 1.2 served"]
    assert_serves(model, "1.2", {0: 1, 1: 6})


def test_a_delta_that_is_replaced_while_the_bad_one_is_read_is_not_taken_for_the_bad_one(root, monkeypatch):
    model = open_model(root)
    path = publish(root, 1, [1], tag=6)
    good, read = path.read_bytes(), model_module.read_delta
    path.write_bytes(b"bad")

    def replaced_meanwhile(path):
        try:
            return read(path)
        finally:
            path.with_name(".new").write_bytes(good)
            os.replace(path.with_name(".new"), path)

    monkeypatch.setattr(model_module, "read_delta", replaced_meanwhile)
    assert len(model.poll()) == 1
    monkeypatch.setattr(model_module, "read_delta", read)
    assert model.poll() == ["small 1.1 served"]


def test_a_gap_waits_unread_and_is_served_when_the_missing_delta_arrives(root, reads):
    model = open_model(root)
    publish(root, 2, [2], tag=2)
    publish(root, 3, [3], tag=3)
    assert model.poll() == [
        "small delta 2 waits: delta: continues step 1, the served generation is 1.0",
        "small delta 3 waits: delta: continues step 2, the served generation is 1.0",
    ]
    assert [model.poll() for _ in range(3)] == [[], [], []]
    assert reads == ["2.safetensors", "3.safetensors"]
    assert_serves(model, "1.0")
    publish(root, 1, [1], tag=1)
    assert model.poll() == ["small 1.1 served", "small 1.2 served", "small 1.3 served"]
    assert_serves(model, "1.3", {1: 1, 2: 2, 3: 3})


def test_a_gap_is_closed_by_an_upload_too(root):
    model = open_model(root)
    publish(root, 2, [2], tag=2)
    model.poll()
    model.apply_bytes(delta_bytes(root, 1, [1], tag=1))
    assert model.poll() == ["small 1.2 served"]
    assert_serves(model, "1.2", {1: 1, 2: 2})


def test_a_compacted_delta_steps_over_a_broken_or_missing_run(root):
    model = open_model(root)
    publish(root, 1).write_bytes(b"broken")
    publish(root, 3, [1, 2, 3], parent=0, tag=9, compacted=True)
    refused, served = model.poll()
    assert refused.startswith("small delta 1 refused: delta: ")
    assert served == "small 1.3 served"
    publish(root, 4, [4], tag=4)
    assert model.poll() == ["small 1.4 served"]
    assert_serves(open_model(root), "1.4", {1: 9, 2: 9, 3: 9, 4: 4})


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (dict(step=2), "delta 1 refused: delta: step 1 wanted by its file name, got 2"),
        (dict(step=1, version=7), "delta 1 waits: delta: for version 7"),
        (dict(step=1, users=[1, 1]), "delta 1 refused: .* more than once"),
    ],
)
def test_a_delta_that_does_not_belong_where_it_lies_is_refused(root, delta, message):
    model = open_model(root)
    write_delta(deltas_folder(root) / "1.safetensors", make_delta(**{"users": [0], **delta}))
    (line,) = model.poll()
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(line)
    assert model.poll() == []
    assert_serves(model, "1.0")


def test_a_delta_of_another_model_is_refused(root):
    write_package(root, model="other", users=USERS)
    data = delta_bytes(root, 1, [0])
    (root / "other" / "1" / "deltas" / "1.safetensors").write_bytes(data)
    other = ServedModel("other", Repository(root), open_model(root)._load, connect, SystemClock())
    (loaded,) = other.poll()
    assert loaded == "other 1.0 loaded"
    with pytest.raises(BadInput, match="for model 'small', wanted 'other'"):
        other.apply_bytes(data)


def test_a_folder_of_deltas_that_appears_later_is_watched(root):
    deltas_folder(root).rmdir()
    model = open_model(root)
    model.poll()
    deltas_folder(root).mkdir()
    publish(root, 1, [1], tag=1)
    assert model.poll() == ["small 1.1 served"]


# Uploads


def test_an_upload_is_served_kept_and_there_after_a_restart(root):
    model = open_model(root)
    data = delta_bytes(root, 1, [1, 2], [3], tag=4, dense_seed=2)
    applied = model.apply_bytes(data)
    assert (applied.model, str(applied.generation), applied.rows, applied.removed) == ("small", "1.1", 2, 1)
    assert applied.apply_ms > 0
    assert (deltas_folder(root) / "1.safetensors").read_bytes() == data
    assert model.poll() == []
    for opened in (model, open_model(root)):
        assert_serves(opened, "1.1", {1: 4, 2: 4, 3: None}, dense_seed=2)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda root: b"", Corrupt),
        (lambda root: b"x" * 1000, Corrupt),
        (lambda root: delta_bytes(root, 1, [0])[:-1], Corrupt),
        (lambda root: delta_bytes(root, 2, [0]), Conflict),
        (lambda root: delta_bytes(root, 1, [0], version=2), Conflict),
        (lambda root: delta_bytes(root, 1, [0, 0]), BadInput),
    ],
)
def test_an_upload_that_is_refused_leaves_no_trace(root, make, error):
    model = open_model(root)
    with pytest.raises(error):
        model.apply_bytes(make(root))
    assert files(deltas_folder(root)) == []
    assert_serves(model, "1.0")


def test_an_upload_that_is_served_already_is_a_conflict_and_keeps_the_file(root):
    model = open_model(root)
    data = delta_bytes(root, 1, [1], tag=1)
    model.apply_bytes(data)
    with pytest.raises(Conflict, match=r"step 1 is not ahead of the served generation 1\.1"):
        model.apply_bytes(delta_bytes(root, 1, [1], tag=2))
    assert (deltas_folder(root) / "1.safetensors").read_bytes() == data
    assert files(deltas_folder(root)) == ["1.safetensors"]


def test_an_upload_that_cannot_be_kept_is_not_served(root, monkeypatch):
    model = open_model(root)

    def refuse(*_):
        raise NotReady("delta: the repository cannot be written")

    monkeypatch.setattr(model._repository, "keep_delta", refuse)
    with pytest.raises(NotReady):
        model.apply_bytes(delta_bytes(root, 1, [1], tag=1))
    assert_serves(model, "1.0")


def test_an_upload_beyond_the_arena_is_taken_out_of_the_chain_again(root, monkeypatch):
    monkeypatch.setattr(table_module, "MIN_ARENA_SLOTS", 30)
    model = open_model(root)
    with pytest.raises(TooLarge, match="table 'user': the arena of 30 rows is full"):
        model.apply_bytes(delta_bytes(root, 1, range(100, 131), tags=["a"]))
    assert files(deltas_folder(root)) == ["rolled-back/1.1.safetensors"]
    assert_serves(model, "1.0")
    model.apply_bytes(delta_bytes(root, 1, range(100, 130), tags=["a"]))
    assert str(model.pick().generation) == "1.1"
    assert str(open_model(root).pick().generation) == "1.1"


def test_a_file_elsewhere_in_the_repository_is_copied_into_the_chain(root):
    model = open_model(root)
    path = root / "uploads" / "d"
    path.parent.mkdir()
    path.write_bytes(delta_bytes(root, 1, [1], tag=4))
    assert str(model.apply_file(path).generation) == "1.1"
    path.unlink()
    for opened in (model, open_model(root)):
        assert_serves(opened, "1.1", {1: 4})


def test_a_file_in_its_place_is_applied_in_place_and_may_be_applied_again(root):
    model = open_model(root)
    path = publish(root, 1, [1], tag=4)
    before = path.stat().st_ino
    first, again = model.apply_file(path), model.apply_file(path)
    assert (first.generation, first.rows) == (again.generation, again.rows) == (Generation(1, 1), 1)
    assert files(deltas_folder(root)) == ["1.safetensors"]
    assert path.stat().st_ino == before
    assert model.poll() == []
    model.poll()
    assert model.apply_file(path).apply_ms == 0


def test_a_file_that_the_watcher_was_faster_to_serve_answers_as_applied(root):
    model = open_model(root)
    path = publish(root, 1, [1], tag=4)
    model.poll()
    assert model.apply_file(path).generation == Generation(1, 1)


def test_another_delta_of_the_served_step_is_a_conflict(root):
    model = open_model(root)
    publish(root, 1, [1], tag=4)
    model.poll()
    with pytest.raises(Conflict):
        model.apply_file(publish(root, 1, [1], tag=5))


# Rollback


@pytest.fixture
def chained(root):
    """A model at 1.5, user n of step n; every other delta has dense weights of its own."""
    for step in range(1, 6):
        publish(root, step, [step], tag=step, dense_seed=step if step % 2 else None)
    return root


def content(step):
    return {n: n for n in range(1, step + 1)}


def dense_of(step):
    return step if step % 2 else max(0, step - 1)


@pytest.mark.parametrize("undo_depth", [16, 2, 0])
@pytest.mark.parametrize("step", [4, 3, 1, 0])
def test_a_rollback_serves_the_earlier_generation_in_or_out_of_the_undo_window(chained, undo_depth, step):
    model = open_model(chained, undo_depth)
    assert model.rollback(Generation(1, step)) == Generation(1, step)
    for opened in (model, open_model(chained, undo_depth)):
        assert_serves(opened, f"1.{step}", content(step), dense_seed=dense_of(step))
    assert [(s.version, s.state) for s in model.status()] == [(1, "AVAILABLE")]
    kept = [f"{n}.safetensors" for n in range(1, step + 1)]
    aside = [f"rolled-back/{n}.1.safetensors" for n in range(step + 1, 6)]
    assert files(deltas_folder(chained)) == sorted(kept + aside)
    assert model.poll() == []


def test_after_a_rollback_the_chain_goes_on_from_there(chained):
    model = open_model(chained)
    model.rollback(Generation(1, 3))
    publish(chained, 4, [4], tag=40)
    assert model.poll() == ["small 1.4 served"]
    model.rollback(Generation(1, 3))
    model.apply_bytes(delta_bytes(chained, 4, [4], tag=400))
    for opened in (model, open_model(chained)):
        assert_serves(opened, "1.4", content(3) | {4: 400}, dense_seed=3)
    assert [f for f in files(deltas_folder(chained)) if "/4." in f] == [
        "rolled-back/4.1.safetensors",
        "rolled-back/4.2.safetensors",
    ]


def test_a_rollback_takes_waiting_deltas_out_of_the_chain_too(chained):
    model = open_model(chained)
    publish(chained, 9, parent=8)
    model.poll()
    model.rollback(Generation(1, 5))
    assert "rolled-back/9.1.safetensors" in files(deltas_folder(chained))
    assert_serves(model, "1.5", content(5), dense_seed=5)


@pytest.mark.parametrize(
    ("generation", "error", "message"),
    [
        ("1.6", Conflict, "a generation before 1.5 wanted, got 1.6"),
        ("2.0", NotFound, "version 2 of model 'small' is not loaded"),
    ],
)
def test_a_rollback_to_what_never_was_changes_nothing(chained, generation, error, message):
    model = open_model(chained)
    before = files(deltas_folder(chained))
    with pytest.raises(error, match=message):
        model.rollback(Generation.parse(generation))
    assert files(deltas_folder(chained)) == before
    assert_serves(model, "1.5", content(5), dense_seed=5)


def test_a_step_inside_a_compacted_run_is_no_generation(root):
    publish(root, 5, [1], parent=0, tag=5, compacted=True)
    model = open_model(root)
    with pytest.raises(NotFound, match=r"1\.3 is not a generation of model 'small'"):
        model.rollback(Generation(1, 3))
    assert_serves(model, "1.5", {1: 5})


def test_a_rollback_that_the_disk_cannot_rebuild_changes_nothing(chained):
    model = open_model(chained, undo_depth=1)
    (deltas_folder(chained) / "2.safetensors").unlink()
    before = files(deltas_folder(chained))
    with pytest.raises(FreshetError, match=r"1\.3"):
        model.rollback(Generation(1, 3))
    assert files(deltas_folder(chained)) == before
    assert_serves(model, "1.5", content(5), dense_seed=5)
    assert [(s.version, s.state, s.error) for s in model.status()] == [(1, "AVAILABLE", "")]


def test_a_rollback_in_memory_needs_no_old_files(chained):
    model = open_model(chained)
    for step in (1, 2, 3):
        (deltas_folder(chained) / f"{step}.safetensors").unlink()
    model.rollback(Generation(1, 2))
    assert_serves(model, "1.2", content(2), dense_seed=1)


class Absent(Replica):
    """Replicas that are not there for a while, as when every worker process is being replaced."""

    there = True

    def prepare(self, change):
        if not Absent.there:
            raise NotReady("nobody is there")
        super().prepare(change)


def test_what_nobody_was_there_to_serve_is_tried_again_and_not_refused(root, monkeypatch):
    def attach(version):
        return Absent(version.files, version.control, 0, 1, SystemClock())

    def load(reader):
        return ServedVersion(reader, 4, SystemClock())

    told = []
    model = ServedModel("small", Repository(root), load, attach, SystemClock(), lambda: told.append(model.routes))
    model.poll()
    assert told[-1].pick().generation == Generation(1, 0)
    monkeypatch.setattr(Absent, "there", False)
    publish(root, 1, dense_seed=1)
    write_package(root, version=2, users=USERS)
    assert sorted(e.split(":")[0] for e in model.poll()) == ["small delta 1 waits", "small version 2 waits"]
    for _ in range(2):
        assert [e.split(":")[0] for e in model.poll()] == ["small delta 1 waits"]
    with pytest.raises(NotReady):
        model.apply_bytes(delta_bytes(root, 1, (0,), dense_seed=1))
    assert model.pick().generation == Generation(1, 0)
    monkeypatch.setattr(Absent, "there", True)
    publish(root, 1)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert told[-1].pick().generation == Generation(2, 0)


# Policy


def open_with(root, **policy):
    """The model under a policy, loaded."""

    def load(reader):
        return ServedVersion(reader, 4, SystemClock())

    parsed = ModelPolicy.parse(policy, "model.small")
    served = ServedModel("small", Repository(root), load, connect, SystemClock(), policy=parsed)
    served.poll()
    return served


@pytest.fixture
def three(root):
    for number in (2, 3):
        write_package(root, number, users=USERS)
    return root


@pytest.mark.parametrize(
    ("versions", "served"), [("latest:1", [3]), ("latest:2", [2, 3]), ("all", [1, 2, 3]), ([1, 2], [1, 2])]
)
def test_the_policy_says_which_versions_are_served(three, versions, served):
    assert sorted(open_with(three, versions=versions).served) == served


def test_the_newest_of_a_policy_pushes_the_oldest_out(three):
    model = open_with(three, versions="latest:2")
    write_package(three, 4, users=USERS)
    assert model.poll() == ["small 4.0 loaded", "small version 2 unloaded"]
    assert sorted(model.served) == [3, 4]


def test_a_newest_version_that_cannot_be_served_pushes_nobody_out(three):
    model = open_with(three, versions="latest:2")
    folder = write_package(three, 4, users=USERS)
    (folder / "dense.safetensors").write_bytes(b"broken")
    (event,) = model.poll()
    assert event.startswith("small version 4 refused")
    assert sorted(model.served) == [2, 3]


def test_specific_versions_are_served_and_no_others_even_when_they_are_missing(three):
    model = open_with(three, versions=[7])
    assert not model.ready
    write_package(three, 7, users=USERS)
    model.poll()
    assert sorted(model.served) == [7]


def test_configured_labels_are_loaded_and_those_that_were_set_count_over_them(three):
    model = open_with(three, labels={"stable": 1, "canary": 2})
    assert sorted(model.served) == [1, 2, 3]
    model.set_label("canary", 3)
    again = open_with(three, labels={"stable": 2, "canary": 2})
    assert again.labels == {"stable": 2, "canary": 3}


def test_a_policy_that_is_set_is_kept_and_keeps_every_sticky_key_where_it_was(three):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 95, "canary": 5})
    model.set_policy({"split": {"stable": 80, "canary": 20}, "versions": "all"})
    assert sorted(model.served) == [2, 3]
    model.poll()
    assert sorted(model.served) == [1, 2, 3]
    again = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 95, "canary": 5})
    assert again.routes.traffic.split == model.routes.traffic.split
    assert again.routes.shares() == {2: pytest.approx(0.8), 3: pytest.approx(0.2)}
    again.set_policy({"split": None, "versions": None})
    assert again.routes.shares() == {2: pytest.approx(0.95), 3: pytest.approx(0.05)}
    assert again.policy.versions.spelled == "latest:1"


def test_a_policy_that_is_wrong_changes_nothing(three):
    model = open_with(three)
    for changes in ({"split": {"a": -1}}, {"nonsense": 1}, {"labels": {"a": 1}}, []):
        with pytest.raises(BadInput):
            model.set_policy(changes)
    assert model.policy.to_json() == {}


def test_a_version_that_was_taken_out_stays_out_until_it_is_readmitted(three):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 1, "canary": 1})
    model.take_out(3, "nonfinite: all of them")
    assert model.routes.shares() == {2: 1.0}
    again = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 1, "canary": 1})
    assert again.routes.shares() == {2: 1.0}
    assert again.routes.traffic.out[3].reason == "nonfinite: all of them"
    again.readmit(3)
    assert again.routes.shares() == {2: 0.5, 3: 0.5}
    with pytest.raises(NotFound, match="version 3 of model 'small' has not been taken out"):
        again.readmit(3)


def test_a_version_is_taken_out_while_another_one_loads_and_where_nothing_can_be_kept(three, monkeypatch, caplog):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 1, "canary": 1})

    def refuse(*_):
        raise NotReady("traffic: the repository cannot be written")

    monkeypatch.setattr(model._repository, "keep_traffic", refuse)
    with model._lock:
        thread = threading.Thread(target=model.take_out, args=(3, "errors: too many"))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert model.routes.shares() == {2: 1.0}
    assert "only until a restart" in caplog.text


def test_traffic_that_is_not_ours_is_told_of_and_left_alone(three, caplog):
    (three / "small" / "traffic.json").write_text('{"policy": {"nonsense": 1}, "out": 7}')
    assert open_with(three).routes.shares() == {3: 1.0}
    assert "cannot be read" in caplog.text
