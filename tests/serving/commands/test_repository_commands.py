import os

import pytest

from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.serving.commands.running import run
from tests.support.packages import make_delta, write_package


def write_chain(repository, deltas, model="small"):
    write_package(repository, model=model)
    change_log = ChangeLog.of(Repository(repository).version(model, 1))
    for step in range(1, deltas + 1):
        change_log.publish(make_delta(step, [step]))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_prune_keeps_the_snapshot_and_removes_earlier_deltas(tmp_path):
    write_chain(tmp_path, 3)
    assert run("delta", "compact", "small", "--repository", str(tmp_path)) == "small 1.3: written as a snapshot\n"
    assert "nothing to fold" in run("delta", "compact", "small", "--repository", str(tmp_path), "--version", "1")
    deltas = tmp_path / "small" / "1" / "deltas"

    asked = ("repository", "prune", "--repository", str(tmp_path), "--keep", "0")
    told = run(*asked, "--dry-run")
    assert names(deltas) == ["1.safetensors", "2.safetensors", "3.safetensors"]
    assert "small/1/deltas/1.safetensors: before the snapshot, " in told
    assert told.splitlines()[-1].endswith("bytes would be freed")

    assert run(*asked, "--model", "small").splitlines()[:-1] == told.splitlines()[:-1]
    assert names(deltas) == []
    assert run(*asked) == "0 bytes were freed\n"
    assert ChangeLog.of(Repository(tmp_path).version("small")).history.head.step == 3


def test_prune_by_default_keeps_the_newest_generations_reachable(tmp_path):
    write_chain(tmp_path, 3)
    run("delta", "compact", "small", "--repository", str(tmp_path))
    assert run("repository", "prune", "--repository", str(tmp_path)) == "0 bytes were freed\n"


def test_prune_removes_what_killed_decisions_left_a_day_ago(tmp_path):
    write_chain(tmp_path, 1)
    left = [tmp_path / "small" / "withdrawn" / ".1-1.json.abcd.tmp", tmp_path / "small" / "candidates" / ".2.abcd.tmp"]
    young = tmp_path / "small" / "withdrawn" / ".1-2.json.abcd.tmp"
    for path in (*left, young):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    for path in left:
        os.utime(path, (0, 0))
    run("repository", "prune", "--repository", str(tmp_path))
    assert [path.exists() for path in (*left, young)] == [False, False, True]


def test_missing_model_is_named(tmp_path):
    write_chain(tmp_path, 1)
    with pytest.raises(NotFound, match="'other'"):
        run("repository", "prune", "--repository", str(tmp_path), "--model", "other")
    with pytest.raises(NotFound, match="'other'"):
        run("delta", "compact", "other", "--repository", str(tmp_path))
