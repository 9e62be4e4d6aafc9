"""A model's deltas: in its folder whole, broken, early or never; uploaded; and rolled back."""

import errno
import os

import pytest

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, FreshetError, NotFound, NotReady, TooLarge
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import storage as storage_module
from freshet_serving.processor.repository.log import change_log as ledger_module
from freshet_serving.processor.repository.log import log_reader as patrol_module
from freshet_serving.processor.repository.log.chain_record import ChainRecord
from freshet_serving.processor.tables import table as table_module
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.versions.models import USERS, assert_serves, deltas_folder, open_model, publish
from tests.support.packages import delta_bytes, write_package


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path, users=USERS)
    return tmp_path


@pytest.fixture
def reads(monkeypatch):
    """Names of the delta files that were opened, in order."""
    seen, read = [], patrol_module.read_delta_file

    def watch(path, *most):
        seen.append(path.name)
        return read(path, *most)

    for module in (ledger_module, patrol_module):
        monkeypatch.setattr(module, "read_delta_file", watch)
    return seen


def records(root):
    folder = root / "small" / "1" / "chain"
    paths = sorted(folder.iterdir())
    return [ChainRecord.from_bytes(path.read_bytes(), n) for n, path in enumerate(paths, start=1)]


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_delta_file_is_served_on_the_next_poll(root):
    model = open_model(root)
    publish(root, 1, [1, 50], removed=[2], tag=3, dense_seed=8)
    assert model.poll() == ["small 1.1 served"]
    assert_serves(model, "1.1", {1: 3, 50: 3, 2: None}, dense_seed=8)
    publish(root, 2, [2], tag=4)
    publish(root, 3, [3], tag=5)
    assert model.poll() == ["small 1.2 served", "small 1.3 served"]
    assert_serves(model, "1.3", {1: 3, 50: 3, 2: 4, 3: 5}, dense_seed=8)


def test_restart_replays_the_whole_change_log(root):
    model = open_model(root, undo_depth=2)
    for step in range(1, 9):
        publish(root, step, [step], tag=step, dense_seed=step if step in (3, 5) else None)
        model.poll()
    wanted = {step: step for step in range(1, 9)}
    for opened in (model, open_model(root, undo_depth=2)):
        assert_serves(opened, "1.8", wanted, dense_seed=5)
        assert opened.pick().position.undoable == [6, 7]


def test_hidden_temporary_file_is_never_opened(root, reads):
    model = open_model(root)
    path = publish(root, 1)
    half = path.with_name(".2.safetensors.a1b2c3d4.tmp")
    half.write_bytes(path.read_bytes()[:100])
    path.with_name("2.safetensors.part").write_bytes(b"half")
    assert model.poll() == ["small 1.1 served"]
    assert model.poll() == []
    assert reads == ["1.safetensors"]


def test_corrupt_delta_is_refused_once_and_served_once_replaced(root, reads):
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


def test_delta_replaced_during_the_read_is_not_refused(root, monkeypatch):
    model = open_model(root)
    path = publish(root, 1, [1], tag=6)
    good, read = path.read_bytes(), ledger_module.read_delta_file
    path.write_bytes(b"bad")

    def replaced_meanwhile(path):
        try:
            return read(path)
        finally:
            path.with_name(".new").write_bytes(good)
            os.replace(path.with_name(".new"), path)

    monkeypatch.setattr(ledger_module, "read_delta_file", replaced_meanwhile)
    refused, *served = model.poll()
    monkeypatch.setattr(ledger_module, "read_delta_file", read)
    assert refused.startswith("small delta 1 refused")
    assert served + model.poll() == ["small 1.1 served"]


def test_delta_after_a_gap_is_served_when_the_missing_arrives(root, reads):
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


def test_gap_is_also_closed_by_an_upload(root):
    model = open_model(root)
    publish(root, 2, [2], tag=2)
    model.poll()
    model.apply_bytes(delta_bytes(1, [1], tag=1))
    assert model.poll() == ["small 1.2 served"]
    assert_serves(model, "1.2", {1: 1, 2: 2})


def test_compacted_delta_skips_a_broken_or_missing_run(root):
    model = open_model(root)
    publish(root, 1).write_bytes(b"broken")
    publish(root, 3, [1, 2, 3], parent=0, tag=9, compacted=True)
    refused, served = model.poll()
    assert refused.startswith("small delta 1 refused: delta: ")
    assert served == "small 1.3 served"
    publish(root, 4, [4], tag=4)
    assert model.poll() == ["small 1.4 served"]
    assert_serves(open_model(root), "1.4", {1: 9, 2: 9, 3: 9, 4: 4})


def test_delta_folder_that_appears_later_is_watched(root):
    deltas_folder(root).rmdir()
    model = open_model(root)
    model.poll()
    deltas_folder(root).mkdir()
    publish(root, 1, [1], tag=1)
    assert model.poll() == ["small 1.1 served"]


def test_upload_is_served_stored_and_present_after_a_restart(root):
    model = open_model(root)
    data = delta_bytes(1, [1, 2], [3], tag=4, dense_seed=2)
    applied = model.apply_bytes(data)
    assert (applied.model, str(applied.generation), applied.rows, applied.removed) == ("small", "1.1", 2, 1)
    assert applied.apply_ms > 0
    assert [path.read_bytes() for path in deltas_folder(root).iterdir()] == [data]
    again = model.apply_bytes(data)
    assert (again.generation, again.apply_ms) == (applied.generation, 0)
    assert model.poll() == []
    for opened in (model, open_model(root)):
        assert_serves(opened, "1.1", {1: 4, 2: 4, 3: None}, dense_seed=2)


@pytest.mark.parametrize(
    ("data", "error"),
    [(delta_bytes(1, [0])[:-1], Corrupt), (delta_bytes(2, [0]), Conflict), (delta_bytes(1, [0, 0]), BadInput)],
)
def test_refused_upload_leaves_no_trace(root, data, error):
    model = open_model(root)
    with pytest.raises(error):
        model.apply_bytes(data)
    assert files(deltas_folder(root)) == []
    assert_serves(model, "1.0")


def test_different_delta_of_a_served_step_conflicts(root):
    model = open_model(root)
    data = delta_bytes(1, [1], tag=1)
    model.apply_bytes(data)
    with pytest.raises(Conflict, match=r"step 1 is not ahead of the served generation 1\.1"):
        model.apply_bytes(delta_bytes(1, [1], tag=2))
    (path,) = deltas_folder(root).iterdir()
    assert path.read_bytes() == data
    with pytest.raises(Conflict):
        model.apply_file(publish(root, 1, [1], tag=5))


@pytest.mark.parametrize("stored", [0, 1], ids=["file", "record"])
def test_upload_that_cannot_be_stored_is_not_served(root, monkeypatch, stored):
    model, give_name, names = open_model(root), storage_module.give_name, []

    def give_until_full(temporary, path):
        if len(names) == stored:
            raise OSError(errno.ENOSPC, "no space")
        names.append(path)
        give_name(temporary, path)

    monkeypatch.setattr(storage_module, "give_name", give_until_full)
    with pytest.raises(NotReady):
        model.apply_bytes(delta_bytes(1, [1], tag=1))
    assert_serves(model, "1.0")
    assert len(names) == stored
    assert files(deltas_folder(root)) == []
    assert [path.name for path in (root / "small" / "1" / "chain").glob(".*")] == []
    assert model.poll() == []


def test_upload_exceeding_the_arena_never_enters_the_change_log(root, monkeypatch):
    monkeypatch.setattr(table_module, "MIN_ARENA_SLOTS", 30)
    model = open_model(root)
    with pytest.raises(TooLarge, match="table 'user': the arena of 30 rows is full"):
        model.apply_bytes(delta_bytes(1, range(100, 131), tags=["a"]))
    assert_serves(model, "1.0")
    assert files(root / "small" / "1" / "deltas") == []
    model.apply_bytes(delta_bytes(1, range(100, 130), tags=["a"]))
    assert str(model.pick().generation) == "1.1"
    assert str(open_model(root).pick().generation) == "1.1"
    assert [r.kind for r in records(root)] == ["delta"]


def test_file_in_the_delta_folder_is_applied_in_place_repeatedly(root):
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


@pytest.mark.parametrize(("undo_depth", "step"), [(16, 4), (16, 0), (2, 3), (2, 1), (0, 4), (0, 0)])
def test_rollback_serves_the_earlier_generation_at_any_undo_depth(chained, undo_depth, step):
    model = open_model(chained, undo_depth)
    before = files(deltas_folder(chained))
    done = model.rollback(Generation(1, step))
    assert (done.generation, done.next_step, done.recorded) == (Generation(1, step), 6, True)
    assert done.undone == [Generation(1, n) for n in range(step + 1, 6)]
    for opened in (model, open_model(chained, undo_depth)):
        assert_serves(opened, f"1.{step}", content(step), dense_seed=dense_of(step))
    assert [(s.version, s.state) for s in model.routes.status()] == [(1, "AVAILABLE")]
    assert files(deltas_folder(chained)) == before
    assert model.poll() == []


def test_change_log_continues_after_a_rollback_under_a_new_step(chained):
    # The new row is longer by far than those before.
    model = open_model(chained, policy=ModelPolicy.parse({"delta_guard": {"mode": "off"}}, "model.small"))
    model.rollback(Generation(1, 3))
    publish(chained, 6, [4], parent=3, tag=40)
    assert model.poll() == ["small 1.6 served"]
    model.rollback(Generation(1, 3))
    model.apply_bytes(delta_bytes(7, [4], parent=3, tag=400))
    for opened in (model, open_model(chained)):
        assert_serves(opened, "1.7", content(3) | {4: 400}, dense_seed=3)


def test_undone_delta_may_be_applied_again(chained):
    model = open_model(chained)
    digest = model.pick().digest
    undone = [(deltas_folder(chained) / f"{n}.safetensors").read_bytes() for n in (4, 5)]
    model.rollback(Generation(1, 3))
    for data in undone:
        model.apply_bytes(data)
    assert model.pick().digest == digest
    for opened in (model, open_model(chained)):
        assert_serves(opened, "1.5", content(5), dense_seed=5)


def test_rollback_leaves_waiting_files_in_place(chained):
    model = open_model(chained)
    path = publish(chained, 9, parent=8)
    model.poll()
    assert model.chain(1).state == "WAITING"
    model.rollback(Generation(1, 4))
    assert path.exists()
    assert_serves(model, "1.4", content(4), dense_seed=3)


@pytest.mark.parametrize(
    ("generation", "error", "message"),
    [
        ("1.6", Conflict, "expected a generation before 1.5, got 1.6"),
        ("2.0", NotFound, "version 2 of model 'small' is not loaded"),
    ],
)
def test_rollback_to_a_nonexistent_generation_changes_nothing(chained, generation, error, message):
    model = open_model(chained)
    before = files(deltas_folder(chained))
    with pytest.raises(error, match=message):
        model.rollback(Generation.parse(generation))
    assert files(deltas_folder(chained)) == before
    assert_serves(model, "1.5", content(5), dense_seed=5)


def test_step_inside_a_compacted_run_is_not_a_generation(root):
    publish(root, 5, [1], parent=0, tag=5, compacted=True)
    model = open_model(root)
    with pytest.raises(NotFound, match=r"generation 1\.3 of model 'small' does not exist"):
        model.rollback(Generation(1, 3))
    assert_serves(model, "1.5", {1: 5})


def test_rollback_that_cannot_be_rebuilt_from_disk_changes_nothing(chained):
    model = open_model(chained, undo_depth=1)
    (deltas_folder(chained) / "2.safetensors").unlink()
    before = files(chained)
    with pytest.raises(FreshetError, match=r"1\.3"):
        model.rollback(Generation(1, 3))
    assert files(chained) == before
    assert_serves(model, "1.5", content(5), dense_seed=5)
    assert [(s.version, s.state, s.error) for s in model.routes.status()] == [(1, "AVAILABLE", "")]


def test_rollback_in_memory_needs_no_old_files(chained):
    model = open_model(chained)
    for step in (1, 2, 3):
        (deltas_folder(chained) / f"{step}.safetensors").unlink()
    model.rollback(Generation(1, 2))
    assert_serves(model, "1.2", content(2), dense_seed=1)
