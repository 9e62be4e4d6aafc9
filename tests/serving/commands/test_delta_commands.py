import errno
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.processor.errors import BadInput, Diverged, NotReady
from freshet_serving.processor.package import EntityEntry
from freshet_serving.processor.repository.log.chain_record import HOLD
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.processor.repository.log.damaged import damaged_chain, write_unchecked
from tests.serving.commands.running import run
from tests.support import entities
from tests.support.packages import make_delta, write_package


def test_delta_is_applied_and_rolled_back_on_a_running_server(admin, tmp_path):
    address, processor = admin
    file = tmp_path / "18.safetensors"
    file.write_bytes(b"delta")
    where = ("--admin", address)
    assert run("delta", "apply", "ctr", str(file), *where) == "ctr 3.18: 5 rows, 1 removed, 2.5 ms\n"
    reached, note = run("delta", "rollback", "ctr", "3.16", "--reason", "late labels", *where).splitlines()
    assert reached == "ctr 3.16"
    assert "publishes 3.18" in note
    assert [c[0] for c in processor.calls] == ["apply_delta", "rollback"]


@pytest.mark.parametrize("command", [("rollback",), ("delta", "rollback")])
def test_empty_generation_or_part_takes_nothing_back(admin, command):
    address, processor = admin
    for arguments, name in ((("ctr", ""), "GENERATION"), (("ctr", "3.16", "--only", ""), "--only")):
        with pytest.raises(BadInput, match=f"{name}: expected a value"):
            run(*command, *arguments, "--admin", address)
    assert processor.calls == []


@pytest.fixture
def version(tmp_path):
    write_package(tmp_path, users=range(6))
    return Repository(tmp_path).version("small", 1)


def test_repair_shows_and_then_cuts_the_damage(version, tmp_path):
    damaged_chain(version, good=3, behind=2)
    where = ("small", "--repository", str(tmp_path))
    with pytest.raises(Diverged):
        run("delta", "compact", *where)
    assert "`freshet delta repair small` shows which records to cut" in run("delta", "list", *where)
    shown = run("delta", "repair", *where, code=1)
    assert shown.splitlines() == [
        "small 1.3: record 3 is the last valid record",
        "  record 4: no record: at, reason or top out of bounds",
        "  record 5: delta 1.5: continues record 4",
        "  record 6: rollback 1.3: continues record 5",
        "  served after the cut: 1.3; the next step is 6",
        "nothing changed; run again with --yes to cut these records",
    ]
    assert run("delta", "repair", *where, code=1) == shown
    with pytest.raises(BadInput, match="reason"):
        run("delta", "repair", *where, "--yes", "--reason", "a\u202eb")
    cut = run("delta", "repair", *where, "--yes", "--reason", "a time in milliseconds")
    assert cut.splitlines()[-1] == "small: record 7 sets aside records 4 to 6"
    listed = run("delta", "list", *where)
    assert "sets aside records 4 to 6; a time in milliseconds" in listed
    assert "served: 1.3, digest" in listed
    assert "the next step is 6" in listed
    assert "DIVERGED" not in listed
    again = run("delta", "repair", *where, "--yes")
    assert again == "small 1.3: nothing to repair; all 7 records that a server reads at start are valid\n"
    assert "written as a snapshot" in run("delta", "compact", *where)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"damaged")])
def test_repair_names_a_damaged_delta_file_and_ends_with_one(version, tmp_path, damage):
    change_log = ChangeLog.of(version, whole=True)
    for step in (1, 2, 3):
        change_log.publish(make_delta(step, [step]))
    where = ("small", "--repository", str(tmp_path))
    assert "nothing to repair" in run("delta", "repair", *where)
    damage(change_log.path_of(change_log.history.on_line(2)))
    told = run("delta", "repair", *where, code=1)
    assert "are valid, but delta 2: the file" in told
    assert "restore that file, or roll back to 1.1, the generation before it" in told


def test_unprintable_reason_is_escaped(version, tmp_path):
    change_log = ChangeLog.of(version, whole=True)
    change_log.publish(make_delta(1, [1]))
    bad = "\x1b[2J\u202e\nserved: 1.99, digest deadbeef"
    record = replace(change_log.history.next(HOLD, change_log.history.head), at=1.7e9, reason=bad)
    write_unchecked(version, change_log, record)
    listed = run("delta", "list", "small", "--repository", str(tmp_path))
    assert listed.isascii()
    assert "\x1b" not in listed
    assert r"\x1b[2J\u202e\nserved:" in listed
    assert not any(line.startswith("served: 1.99") for line in listed.splitlines())


def test_compact_of_a_read_only_repository_gives_one_line(version, tmp_path, monkeypatch):
    ChangeLog.of(version).publish(make_delta(1, [1]))

    def read_only(self, *args, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(NotReady, match="snapshot: the repository cannot be written: Read-only file system"):
        run("delta", "compact", "small", "--repository", str(tmp_path))


def test_difference_of_an_entitys_table_is_published(tmp_path):
    entity = EntityEntry("profile", "user", ["tags"], {"tags": 3})
    entities.write_package(tmp_path, entity=entity)
    tags = entities.columns(entities.KNOWN)["tags"]
    table = {"user": pa.array([*range(1, 8), 40]), "tags": pa.array([*tags[1:7], ["zz"], ["a"]])}
    pq.write_table(pa.table(table), tmp_path / "users.parquet")
    make = ("delta", "make", "small", "--from-export", str(tmp_path / "users.parquet"), "--repository", str(tmp_path))
    assert run(*make, "--entity", "profile").startswith("small 1.1: 2 rows, 1 removed, 0 dense weights")
    assert run(*make, "--entity", "profile") == "small 1.1: no differences\n"
    with pytest.raises(BadInput, match="entity 'x' does not exist; the model has profile"):
        run(*make, "--entity", "x")
    shown = run("inspect", "small", "--repository", str(tmp_path))
    assert "profile: 8 keys of user, 32 bytes each: tags, up to 3 of tags" in shown


def test_difference_behind_a_gate_says_held_and_exits_with_one(tmp_path):
    entities.write_package(tmp_path, entity=EntityEntry("profile", "user", ["tags"], {"tags": 3}))
    ChangeLog.of(Repository(tmp_path).version("small")).hold("looked at")
    pq.write_table(pa.table({"user": [1], "tags": [["a"]]}), tmp_path / "users.parquet")
    make = ("delta", "make", "small", "--from-export", str(tmp_path / "users.parquet"), "--repository", str(tmp_path))
    published, held = run(*make, "--entity", "profile", code=1).splitlines()
    assert published.startswith("small 1.1: 1 rows")
    assert held == (
        "HELD: servers do not serve small 1.1: looked at; `freshet delta release small --version 1` serves it"
    )


def test_rows_of_a_stream_are_published_as_features(tmp_path, monkeypatch):
    monkeypatch.setattr("freshet_serving.serving.commands.shutdown_signals.stop_on_signal", lambda stop: None)
    entities.write_package(tmp_path, entity=EntityEntry("profile", "user", ["tags"], {"tags": 3}))
    (tmp_path / "rows").mkdir()
    table = pa.table({"user": [0, 50], "tags": [["a"], []]})
    pq.write_table(table, tmp_path / "rows" / "one.parquet")
    follow = (
        "delta",
        "follow",
        "small",
        "--entity",
        "profile",
        "--from",
        str(tmp_path / "rows"),
        "--once",
        "--repository",
    )
    told = run(*follow, str(tmp_path), "--state", str(tmp_path / "state"))
    assert told == "small 1.1: 2 rows of profile\n2 rows published, 0 skipped\n"
