"""What is served is replaced under a server's eyes, or goes."""

import os

import pytest

from freshet_serving.processor.errors import Diverged
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.version_writer import add_file
from tests.processor.repository.log.damaged import snapshot_at
from tests.support.packages import make_delta, write_package


@pytest.fixture
def watched(version):
    change_log = ChangeLog.of(version)
    for step in range(1, 5):
        change_log.read_delta(change_log.publish(make_delta(step, [step])))
    return change_log


def scrub(change_log):
    for _ in range(40):
        change_log.scrub()


def test_unchanged_files_pass_the_scrub_even_when_copied(version, watched):
    for path in [*(version.folder / "deltas").iterdir(), *(version.folder / "chain").iterdir()]:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    add_file(version, "warmup.safetensors", b"recorded")
    scrub(watched)
    assert watched.look() == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deltas/2.safetensors", r"delta 1\.2"),
        ("deltas/4.safetensors", r"delta 1\.4"),
        ("chain/0000000001.json", "record 1"),
        ("chain/0000000004.json", "record 4"),
    ],
)
@pytest.mark.parametrize("gone", [True, False])
def test_replaced_or_deleted_served_file_is_reported(version, watched, name, message, gone):
    path = version.folder / name
    data = path.read_bytes()
    path.unlink()
    if not gone:
        path.write_bytes(data[:-3] + b" }\n")
    wanted = f"{message}: is served, but its file {'no longer exists' if gone else 'was replaced'}"
    with pytest.raises(Diverged, match=wanted):
        scrub(watched)


def test_version_republished_under_the_same_number_is_reported(version, watched, tmp_path):
    folder = write_package(tmp_path / "other", users=range(6), seed=9)
    os.replace(folder / "model.json", version.folder / "model.json")
    with pytest.raises(Diverged, match="manifest: is served"):
        scrub(watched)


def test_unreachable_repository_is_not_divergence(version, watched):
    away = version.folder.with_name("away")
    version.folder.rename(away)
    scrub(watched)
    assert watched.look() == []
    away.rename(version.folder)
    scrub(watched)


def test_files_that_nothing_needs_may_be_deleted(version, watched):
    snapshot_at(watched, 3)
    watched.rollback(3)
    for step in (1, 2, 3, 4):
        (version.folder / "deltas" / f"{step}.safetensors").unlink()
    scrub(watched)
