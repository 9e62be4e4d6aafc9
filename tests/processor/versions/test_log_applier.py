"""Servers of one repository: each makes itself what the records say, and says so where it cannot."""

import errno

import pytest

from freshet_serving.processor.errors import BadInput, Conflict, NotFound, NotReady, TooLarge
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.repository import storage as storage_module
from freshet_serving.processor.repository.log import dropped_deltas
from freshet_serving.processor.repository.log import log_reader as patrol_module
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.damage import repair
from freshet_serving.processor.tables import table as table_module
from freshet_serving.processor.versions.changes import WarningMessage
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.watching import LabelSums
from tests.processor.repository.log.damaged import damaged_chain
from tests.processor.versions.models import USERS, assert_serves, deltas_folder, open_model, publish
from tests.support.descriptors import few_descriptors
from tests.support.packages import delta_bytes, make_delta, write_package
from tests.support.waiting import until


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path, users=USERS)
    return tmp_path


def ledger_of(root):
    return ChangeLog.of(Repository(root).version("small", 1))


def record(root, step, users=(0,), parent=None, **changes):
    """A delta as the trainer publishes it, with its record."""
    return ledger_of(root).publish(make_delta(step, users, parent=parent, **changes))


def looked(model, times=8):
    return [line for _ in range(times) for line in model.poll()]


def test_recorded_delta_is_served_on_the_next_poll(root):
    model = open_model(root)
    link = record(root, 1, [1])
    assert model.poll() == ["small 1.1 served"]
    status = model.chain(1)
    assert (status.state, status.digest, status.records, status.next_step) == ("CURRENT", link.digest, 1, 2)
    assert open_model(root).pick().digest == link.digest


def test_unreadable_and_refused_deltas_are_distinct_obstacles(root):
    model = open_model(root)
    follower = model._log_appliers[1]
    for say, obstacle in ((follower.wait, "unreadable"), (follower.unreachable, "refused")):
        say("delta 1: no descriptors")
        follower.tell(model.pick())
        status = model.chain(1)
        assert (status.state, status.reason, status.obstacle) == ("WAITING", "delta 1: no descriptors", obstacle)


def test_upload_and_rollback_return_the_next_step_at_once(root):
    model = open_model(root)
    model.apply_bytes(delta_bytes(1, [1]))
    assert (model.chain(1).next_step, model.chain(1).digest) == (2, model.pick().digest)
    model.apply_bytes(delta_bytes(2, [1]))
    model.rollback(Generation(1, 1))
    assert (model.chain(1).next_step, model.chain(1).digest) == (3, model.pick().digest)


def test_rollback_on_one_server_reaches_the_other(root):
    # The last row is longer by far than those before.
    unguarded = ModelPolicy.parse({"delta_guard": {"mode": "off"}}, "model.small")
    one, other = open_model(root, policy=unguarded), open_model(root, undo_depth=1, policy=unguarded)
    for step in range(1, 8):
        record(root, step, [step % 6], tag=step)
    one.poll(), other.poll()
    one.rollback(Generation(1, 4))
    assert other.poll() == ["small rolled back to 1.4"]
    assert one.pick().digest == other.pick().digest
    record(root, 8, [0], parent=4, tag=80)
    for model in (one, other, open_model(root, policy=unguarded)):
        model.poll()
        assert_serves(model, "1.8", {1: 1, 2: 2, 3: 3, 4: 4, 0: 80})
        assert model.chain(1).state == "CURRENT"


def test_deltas_undone_before_being_seen_are_never_read(root, monkeypatch):
    model = open_model(root)
    for step in (1, 2, 3):
        record(root, step, [step], tag=step)
    ledger_of(root).rollback(1)
    read, real = [], ChangeLog.read_delta
    monkeypatch.setattr(ChangeLog, "read_delta", lambda self, link: read.append(link.step) or real(self, link))
    assert model.poll() == ["small 1.1 served"]
    assert open_model(root).pick().generation == Generation(1, 1)
    assert read == [1, 1]


def test_held_delta_waits_for_its_release(root):
    model, change_log = open_model(root), ledger_of(root)
    record(root, 1, [1])
    change_log.hold("AUC fell from 0.76 to 0.61")
    record(root, 2, [2])
    assert model.poll() == ["small deltas after 1.1 are held: AUC fell from 0.76 to 0.61", "small 1.1 served"]
    assert model.poll() == []
    status = model.chain(1)
    assert (status.state, status.reason, status.behind) == ("HELD", "AUC fell from 0.76 to 0.61", 1)
    with pytest.raises(Conflict, match="HELD: AUC fell"):
        model.apply_bytes(delta_bytes(3, [3]))
    assert open_model(root).pick().generation == Generation(1, 1)
    change_log.release()
    assert model.poll() == ["small 1.2 served"]
    assert model.chain(1).state == "CURRENT"


def test_dropped_file_is_recorded_after_the_hold_is_released(root):
    model, change_log = open_model(root), ledger_of(root)
    record(root, 1, [1])
    change_log.hold()
    record(root, 2, [2])
    publish(root, 3, [3])
    assert looked(model) == ["small deltas after 1.1 are held: no reason given", "small 1.1 served"]
    change_log.look()
    assert change_log.history.head.step == 2
    change_log.release()
    assert looked(model) == ["small 1.2 served", "small 1.3 served"]


def test_no_delta_is_applied_on_an_unservable_dropped_delta(root, monkeypatch):
    model = open_model(root)
    publish(root, 2, [1], parent=0, compacted=True)
    publish(root, 3, [3], parent=2)

    def refuse(*arguments, **named):
        raise TooLarge("there is no room for it")

    with monkeypatch.context() as patch:
        patch.setattr(model.pick(), "apply", refuse)
        assert looked(model) == ["small delta 2 refused: there is no room for it"]
        status = model.chain(1)
        assert (status.records, status.behind) == (1, 1)


def test_temporarily_unreadable_records_are_reported_once_and_read_later(root):
    model = open_model(root)
    record(root, 1, [1])
    with few_descriptors():
        told = [line for _ in range(4) for line in model._follow(1, model.pick())]
    assert told == ["small record 1: cannot be read: Too many open files"]
    assert looked(model) == ["small 1.1 served"]


def test_rollback_to_a_hold_rejects_the_deltas_after_it(root):
    model, change_log = open_model(root), ledger_of(root)
    record(root, 1, [1])
    change_log.hold()
    record(root, 2, [2])
    model.poll()
    change_log.rollback(1)
    assert model.poll() == []
    assert model.chain(1).state == "CURRENT"
    record(root, 3, [3], parent=1)
    assert model.poll() == ["small 1.3 served"]


def test_unservable_recorded_delta_is_reported_once_and_fixed_by_rollback(root, monkeypatch):
    monkeypatch.setattr(table_module, "MIN_ARENA_SLOTS", 30)
    model = open_model(root)
    record(root, 1, range(100, 131))
    (line,) = looked(model)
    assert line.startswith("small delta 1 refused: table 'user': the arena of 30 rows is full")
    status = model.chain(1)
    assert (status.state, status.behind) == ("WAITING", 1)
    assert status.reason.startswith("delta 1 refused")
    with pytest.raises(Conflict, match="WAITING: delta 1 refused"):
        model.apply_bytes(delta_bytes(2, [1]))
    assert model.rollback(Generation(1, 0)).next_step == 2
    assert model.chain(1).state == "CURRENT"
    record(root, 2, [1], parent=0, tag=7)
    assert model.poll() == ["small 1.2 served"]


def test_file_that_continues_nothing_is_reported_until_it_is_deleted(root):
    model = open_model(root)
    path = publish(root, 9, parent=8)
    assert len(looked(model)) == 1
    assert (model.chain(1).state, model.chain(1).behind) == ("WAITING", 1)
    assert "continues step 8" in model.chain(1).reason
    path.unlink()
    model.poll()
    assert model.chain(1).state == "CURRENT"


def replace_delta(root, step, **changes):
    write_delta(deltas_folder(root) / f"{step}.safetensors", make_delta(step, [step], **changes))


def test_replaced_served_delta_stops_following_and_keeps_serving(root):
    model = open_model(root)
    for step in (1, 2):
        record(root, step, [step], tag=step)
    model.poll()
    replace_delta(root, 2, tag=9)
    assert [line.split(":")[0] for line in looked(model)] == ["small DIVERGED"]
    status = model.chain(1)
    assert (status.state, status.digest) == ("DIVERGED", model.pick().digest)
    assert "delta 1.2: is served, but its file was replaced" in status.reason
    record(root, 3, [3])
    assert looked(model) == []
    for refused in (lambda: model.apply_bytes(delta_bytes(3, [3])), lambda: model.rollback(Generation(1, 1))):
        with pytest.raises(Conflict, match="DIVERGED"):
            refused()
    assert_serves(model, "1.2", {1: 1, 2: 2})


def test_restored_served_delta_resumes_following(root):
    model = open_model(root)
    record(root, 1, [1])
    record(root, 2, [2])
    looked(model)
    path = deltas_folder(root) / "2.safetensors"
    data = path.read_bytes()
    path.unlink()
    (line,) = looked(model)
    assert line == "small DIVERGED: delta 1.2: is served, but its file no longer exists"
    assert isinstance(line, WarningMessage)
    path.write_bytes(data[:-1])
    assert looked(model) == ["small DIVERGED: delta 1.2: is served, but its file was replaced"]
    path.write_bytes(data)
    record(root, 3, [3])

    assert looked(model) == ["small continues: the files match the served version again", "small 1.3 served"]
    assert model.chain(1).state == "CURRENT"


def test_file_that_is_away_a_second_time_between_two_looks_resumes_following(root):
    model = open_model(root)
    record(root, 1, [1])
    looked(model)
    path = deltas_folder(root) / "1.safetensors"
    for _ in range(3):
        path.rename(path.with_suffix(".kept"))
        # Looked for once while it is away.
        assert model.poll() == ["small DIVERGED: delta 1.1: is served, but its file no longer exists"]
        # The same file, to its inode and time.
        path.with_suffix(".kept").rename(path)
        assert looked(model) == ["small continues: the files match the served version again"]
    assert model.chain(1).state == "CURRENT"


def test_recorded_delta_unreadable_for_lack_of_descriptors_is_served_later(root, monkeypatch):
    model = open_model(root)
    record(root, 1, [1])
    real = patrol_module.read_delta_file

    def starved(*arguments):
        with few_descriptors():
            return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(patrol_module, "read_delta_file", starved)
        assert looked(model) == ["small delta 1 waits: 1.safetensors: cannot be read: Too many open files"]
        assert model.chain(1).state == "WAITING"
    assert looked(model) == ["small 1.1 served"]
    assert_serves(model, "1.1", {1: 1})


def test_rollback_rebuild_without_memory_is_retried_with_backoff(root, monkeypatch):
    model, change_log = open_model(root, undo_depth=1), ledger_of(root)
    for step in range(1, 6):
        record(root, step, [step], tag=step)
    model.poll()
    tried = []

    def starved(files):
        tried.append(1)
        raise NotReady("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(model._loader, "load", starved)
        change_log.rollback(2)
        assert looked(model) == ["small generation 1.2 waits: not enough memory"]
        assert len(tried) == 1, "it rests"
    until(lambda: "small rolled back to 1.2" in model.poll())
    assert_serves(model, "1.2", {1: 1, 2: 2})
    assert looked(model) == []


def test_recorded_delta_whose_file_arrives_late_is_served_then(root):
    model = open_model(root)
    link = record(root, 1, [1])
    path = deltas_folder(root) / "1.safetensors"
    data = path.read_bytes()
    path.unlink()
    assert looked(model) == ["small DIVERGED: delta 1: the file that record 1 names does not exist"]
    path.write_bytes(data)
    assert looked(model) == ["small continues: the files match the served version again", "small 1.1 served"]
    assert model.pick().digest == link.digest


def test_restart_does_not_serve_different_content_under_a_served_name(root):
    for step in (1, 2):
        record(root, step, [step], tag=step)
    replace_delta(root, 2, tag=9)
    model = open_model(root)
    assert_serves(model, "1.1", {1: 1})
    assert model.chain(1).state == "DIVERGED"


def test_diverged_version_is_served_again_after_an_explicit_load(root):
    model = open_model(root)
    for step in (1, 2):
        record(root, step, [step], tag=step)
    model.poll()
    good = (deltas_folder(root) / "2.safetensors").read_bytes()
    replace_delta(root, 2, tag=9)
    looked(model)
    (deltas_folder(root) / "2.safetensors").write_bytes(good)
    record(root, 3, [3], tag=3)
    before = model.pick()
    model.load(1)
    assert model.pick() is not before
    assert_serves(model, "1.3", {1: 1, 2: 2, 3: 3})
    assert model.chain(1).state == "CURRENT"


def make_read_only(monkeypatch):
    def refuse(path):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(storage_module, "exclusive_file", refuse)


@pytest.fixture
def read_only(monkeypatch):
    make_read_only(monkeypatch)


def test_read_only_copy_serves_and_rolls_back_dropped_files_locally(root, read_only):
    for step in (1, 2, 3):
        publish(root, step, [step], tag=step)
    model = open_model(root)
    assert_serves(model, "1.3", {1: 1, 2: 2, 3: 3})
    done = model.rollback(Generation(1, 1))
    assert (done.generation, done.recorded) == (Generation(1, 1), False)
    publish(root, 4, [4], tag=4)
    assert looked(model) == []
    assert_serves(model, "1.1", {1: 1})
    assert model.chain(1).state == "HELD"


def test_read_only_copy_follows_a_recorded_rollback(root, monkeypatch):
    for step in (1, 2, 3):
        record(root, step, [step], tag=step)
    model, change_log = open_model(root, undo_depth=1), ledger_of(root)
    change_log.rollback(1)
    with monkeypatch.context() as patched:
        patched.setattr(storage_module, "exclusive_file", lambda path: pytest.fail("written"))
        assert model.poll() == ["small rolled back to 1.1"]
    assert_serves(model, "1.1", {1: 1})


def test_local_rollback_ends_with_the_next_recorded_rollback(root, monkeypatch):
    for step in (1, 2, 3):
        record(root, step, [step], tag=step)
    model = open_model(root)
    with monkeypatch.context() as patched:
        make_read_only(patched)
        model.rollback(Generation(1, 2))
    assert model.poll() == []
    ledger_of(root).rollback(1)
    record(root, 4, [4], parent=1, tag=4)
    assert model.poll() == ["small rolled back to 1.1", "small 1.4 served"]
    assert model.chain(1).state == "CURRENT"


@pytest.mark.parametrize("undo_depth", [8, 1], ids=("in memory", "built anew"))
def test_local_rollback_is_recorded_once_the_repository_is_writable(root, monkeypatch, undo_depth):
    for step in (1, 2, 3):
        record(root, step, [step], tag=step)
    model = open_model(root, undo_depth=undo_depth)
    with monkeypatch.context() as patched:
        make_read_only(patched)
        assert not model.rollback(Generation(1, 1)).recorded
    assert model.chain(1).state == "HELD"
    assert model.rollback(Generation(1, 1)).recorded
    assert model.chain(1).state == "CURRENT"
    record(root, 4, [4], parent=1, tag=4)
    assert model.poll() == ["small 1.4 served"]


def test_version_with_a_local_rollback_serves_its_log_after_loading(root, monkeypatch):
    for step in (1, 2, 3):
        record(root, step, [step], tag=step)
    model = open_model(root)
    with monkeypatch.context() as patched:
        make_read_only(patched)
        model.rollback(Generation(1, 2))
    model.load(1)
    assert_serves(model, "1.3", {1: 1, 2: 2, 3: 3})
    assert model.chain(1).state == "CURRENT"


def test_polling_lists_no_folder_for_any_number_of_recorded_deltas(root, monkeypatch):
    model = open_model(root)
    for step in range(1, 20):
        record(root, step, [step % 6])
    model.poll()
    listed = []
    monkeypatch.setattr(dropped_deltas, "unrecorded_deltas", lambda folder: listed.append(1) or [])
    monkeypatch.setattr(dropped_deltas.FolderWatch, "changed", lambda self: False)
    assert looked(model, 50) == []
    assert listed == []


def test_generation_that_cannot_be_built_is_reported_once(root, monkeypatch):
    model, change_log = open_model(root, undo_depth=1), ledger_of(root)
    for step in range(1, 6):
        record(root, step, [step], tag=step)
    model.poll()

    def refuse(files):
        raise TooLarge("there is no room for it")

    with monkeypatch.context() as patch:
        patch.setattr(model._loader, "load", refuse)
        change_log.rollback(2)
        why = "generation 1.2 cannot be built from the files: there is no room for it"
        assert looked(model) == [f"small {why}"]
        change_log.hold()
        assert looked(model) == []
        assert (str(model.pick().generation), model.chain(1).state, model.chain(1).reason) == ("1.5", "WAITING", why)
    change_log.release()
    assert looked(model) == ["small rolled back to 1.2"]
    assert_serves(model, "1.2", {1: 1, 2: 2})


def broken(root, good=2, behind=2):
    """A chain that a record in milliseconds has ended, as a server of old wrote it."""
    damaged_chain(Repository(root).version("small", 1), good, behind)


def mended(root, first):
    return repair(ChangeLog(Repository(root).version("small", 1)), first)


def test_diverged_server_continues_on_the_poll_after_a_repair(root):
    broken(root)
    model = open_model(root)
    assert (model.chain(1).state, model.chain(1).reason) == ("DIVERGED", "record 3: at, reason or top out of bounds")
    assert_serves(model, "1.2", {1: 1, 2: 2})
    assert looked(model) == []
    mended(root, 3)
    record(root, 5, [3], parent=2)
    assert looked(model) == [
        "small continues: record 6 sets aside records 3 to 5", "small 1.5 served",
    ]  # fmt: skip
    assert model.chain(1).state == "CURRENT"
    assert_serves(model, "1.5", {1: 1, 2: 2, 3: 5})
    assert open_model(root).pick().digest == model.pick().digest


def test_repair_undoes_served_deltas_whose_record_was_damaged(root):
    model = open_model(root)
    for step in (1, 2, 3):
        record(root, step, [step])
        looked(model)
    assert_serves(model, "1.3", {1: 1, 2: 2, 3: 3})
    (root / "small" / "1" / "chain" / "0000000002.json").write_bytes(b"{}")
    assert [line.split(":")[0] for line in looked(model)] == ["small DIVERGED"]
    mended(root, 2)
    assert looked(model) == ["small continues: record 4 sets aside records 2 to 3", "small rolled back to 1.1"]
    assert_serves(model, "1.1", {1: 1})
    model.apply_bytes(delta_bytes(4, [0], parent=1))
    assert_serves(model, "1.4", {1: 1, 0: 4})
    assert open_model(root).pick().digest == model.pick().digest


def test_labels_are_accepted_only_for_existing_generations(root):
    model = open_model(root)
    record(root, 1, [1])
    looked(model)
    model.loaded(1).add_labels(Generation(1, 1), LabelSums(2.0, 3.0, 5))
    model.loaded(1).add_labels(Generation(1, 0), LabelSums(2.0, 3.0, 5))
    for generation in (Generation(1, 2), Generation(1, 10**9)):
        with pytest.raises(NotFound, match="does not exist"):
            model.loaded(generation.version).add_labels(generation, LabelSums(2.0, 3.0, 5))
    with pytest.raises(BadInput, match="labels: expected a sum from 0 to 5"):
        model.loaded(1).add_labels(Generation(1, 1), LabelSums(2.0, 1e300, 5))
