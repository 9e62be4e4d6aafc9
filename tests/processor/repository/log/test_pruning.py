"""What nothing needs goes, and nothing else: every generation that can be gone back to still starts."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.chain_record import ROLLBACK
from freshet_serving.processor.repository.log.change_log import ChangeLog, missing
from freshet_serving.processor.repository.log.contents import VersionContents
from freshet_serving.processor.repository.log.pruning import ABANDONED_S, prunable, unfinished
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.tables.compaction import compact
from tests.processor.repository.log.test_history import delta, snapshot, start, take
from tests.support.packages import make_delta, write_package

KEEP = 3


@pytest.fixture
def chain(tmp_path):
    write_package(tmp_path)
    version = Repository(tmp_path).version("small", 1)
    return version, ChangeLog.of(version)


def extend(change_log, count=1):
    for _ in range(count):
        step = change_log.history.top + 1
        change_log.publish(make_delta(step, [step % 20, step], parent=change_log.history.head.step))


def prune(version, keep=KEEP, later_s=0.0):
    """Removes what is needless -> {name relative to the version: why}."""
    change_log = ChangeLog(version)
    change_log.look()
    found = prunable(version.storage, change_log.history, keep, time.time() + later_s)
    for one in found:
        one.remove()
        assert not one.path.exists()
    return {one.path.relative_to(version.folder).as_posix(): one.why for one in found}


def deltas(version):
    return sorted(int(path.name.split(".")[0]) for path in (version.folder / "deltas").glob("*.safetensors"))


def snapshots(version):
    return sorted(int(path.name.split("-")[0]) for path in (version.folder / "snapshots").iterdir())


def test_nothing_is_pruned_without_a_snapshot(chain):
    version, change_log = chain
    extend(change_log, 6)
    change_log.rollback(4)
    assert prune(version) == {}


def test_deltas_before_a_snapshot_are_pruned_once_unreachable(chain):
    version, change_log = chain
    extend(change_log, 5)
    compact(version, change_log)
    extend(change_log, KEEP - 1)
    assert prune(version) == {}
    extend(change_log)
    assert prune(version) == {f"deltas/{n}.safetensors": "before the snapshot" for n in range(1, 6)}
    assert deltas(version) == [6, 7, 8]
    assert len(list((version.folder / "chain").iterdir())) == 9
    for link in ChangeLog.of(version).history.line():
        VersionContents(version, change_log, link)


def test_delta_undone_since_the_snapshot_stays_for_its_return(chain):
    version, change_log = chain
    extend(change_log, 5)
    compact(version, change_log)
    extend(change_log, KEEP + 1)
    change_log.rollback(8)
    prune(version)
    assert deltas(version) == [6, 7, 8, 9]


def test_rollback_to_a_pruned_step_is_refused_and_changes_nothing(chain):
    version, change_log = chain
    extend(change_log, 5)
    compact(version, change_log)
    extend(change_log, KEEP)
    prune(version)
    again = ChangeLog.of(version)
    again.rollback(7)
    with pytest.raises(NotFound, match="pruned") as refused:
        again.rollback(4)
    assert "\n" not in str(refused.value)
    assert again.history.head.step == 7
    assert again.rollback(5).step == 5


def test_older_snapshots_and_undone_deltas_are_pruned_after_the_newest(chain):
    version, change_log = chain
    extend(change_log, 2)
    compact(version, change_log)
    extend(change_log, 3)
    change_log.rollback(3)
    extend(change_log, 2)
    compact(version, change_log)
    extend(change_log, KEEP)
    assert set(prune(version).values()) == {"before the snapshot", "an older snapshot", "undone"}
    assert (deltas(version), snapshots(version)) == ([8, 9, 10], [7])
    again = ChangeLog.of(version)
    extend(again)
    assert again.history.head.step == 11


def test_unfinished_files_are_pruned_only_after_a_day(chain):
    version, change_log = chain
    extend(change_log, 3)
    change_log.rollback(1)
    left = [".model.tmp", "deltas/.4.safetensors.ab.tmp", "chain/.9.json.ab.tmp", "snapshots/3-00ff00ff/tables/x"]
    for name in left:
        (version.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (version.folder / name).write_bytes(b"half")
    write_delta(version.folder / "deltas" / "9.safetensors", make_delta(9, [1], parent=8))
    (version.folder / "deltas" / "4-0a0b0c0d.safetensors").write_bytes(b"an upload that a kill kept from its record")
    assert prune(version) == {}
    found = prune(version, later_s=ABANDONED_S + 60)
    assert sorted(found) == sorted([*left[:3], "snapshots/3-00ff00ff", "deltas/4-0a0b0c0d.safetensors"])
    assert found["snapshots/3-00ff00ff"] == "unfinished snapshot"
    assert deltas(version) == [1, 2, 3, 9]  # Step 9 may still come to continue the chain.


def test_dropped_file_that_continues_nothing_is_pruned_after_a_day(chain):
    version, change_log = chain
    extend(change_log)
    stray = version.folder / "deltas" / "2.safetensors"
    write_delta(stray, make_delta(2, [1], parent=0))
    extend(change_log, 2)
    assert prune(version) == {}
    assert prune(version, later_s=ABANDONED_S + 60) == {"deltas/2.safetensors": "unrecorded delta"}
    assert ChangeLog.of(version).history.head.step == 3


def test_deltas_undone_by_a_first_format_server_are_pruned(chain):
    version, _ = chain
    storage = version.folder / "deltas" / "rolled-back"
    storage.mkdir()
    (storage / "3.safetensors").write_bytes(b"12345")
    change_log = ChangeLog(version)
    (one,) = prunable(version.storage, change_log.history, KEEP, time.time())
    assert (one.path, one.nbytes) == (storage, 5)
    assert prune(version) == {"deltas/rolled-back": "undone by a server of the first format"}


def test_uncommitted_versions_are_pruned_after_a_day(tmp_path):
    write_package(tmp_path)
    (tmp_path / "small" / ".2.00ff.tmp" / "tables").mkdir(parents=True)
    assert unfinished(tmp_path / "small", time.time()) == []
    assert [one.path.name for one in unfinished(tmp_path / "small", time.time() + ABANDONED_S + 60)] == [".2.00ff.tmp"]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(st.sampled_from(["publish", "fold", "prune"]), st.integers(0, KEEP)), max_size=16))
def test_newest_generations_stay_reachable_by_rollback_after_pruning(tmp_path_factory, steps):
    repository = tmp_path_factory.mktemp("any")
    write_package(repository)
    version = Repository(repository).version("small", 1)
    change_log = ChangeLog.of(version, whole=True)
    kept, whole = [0], {0: VersionContents(version, change_log, change_log.history.head).table("user")}
    for step in steps:
        if step == "publish":
            extend(change_log)
            kept.append(change_log.history.head.step)
            whole[kept[-1]] = VersionContents(version, change_log, change_log.history.head).table("user")
        elif step == "fold":
            compact(version, change_log)
        elif step == "prune":
            prune(version)
        elif step < len(kept):
            try:
                change_log.rollback(kept[-1 - step])
            except NotFound:
                # Going back twice may reach beyond what one prune has kept.
                continue
            kept = kept[: len(kept) - step]
        assert change_log.history.head.step == kept[-1]
        fresh = ChangeLog.of(version)
        for link in fresh.history.line()[-1:]:
            keys, rows = VersionContents(version, fresh, link).table("user")
            assert keys.tolist() == whole[link.step][0].tolist()
            assert rows.tobytes() == whole[link.step][1].tobytes()


@given(st.lists(st.sampled_from(["fold", "prune", "a", "b", "c", 1, 2]), max_size=16))
def test_no_file_that_a_newest_generation_needs_is_pruned(tmp_path_factory, steps):
    """Records alone: a letter is a delta of another writer, which may name a file that an earlier delta had."""
    history, removed, folder = start(), set[str](), tmp_path_factory.getbasetemp() / "not there"
    storage = SimpleNamespace(folder=folder, has=lambda name: name not in removed)
    for step in [*steps, "prune"]:
        if step == "fold":
            if history.head.record is not None:
                file = f"snapshots/{history.number}/snapshot.json"
                take(history, replace(snapshot(history, history.head), file=file))
        elif step == "prune":
            # Going back twice may reach beyond what one prune has kept.
            newest = [link for link in history.line()[-2:] if not missing(storage, history, link)]
            assert history.head in newest
            for one in prunable(storage, history, 1, time.time()):
                name = one.path.relative_to(folder).as_posix()
                removed.add(f"{name}/snapshot.json" if name.startswith("snapshots/") else name)
            for link in newest:
                assert missing(storage, history, link) == ""
        elif isinstance(step, str):
            removed.discard(f"deltas/{step}")
            take(history, replace(delta(history, history.number), file=f"deltas/{step}"))
        else:
            back = history.line()[-1 - step :][0]
            if back is not history.head and not missing(storage, history, back):
                take(history, history.next(ROLLBACK, back))
