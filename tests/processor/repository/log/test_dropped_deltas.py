"""Files that were dropped without a record: found by name, listed only as often as it costs little."""

import os

import pytest

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.repository.log import dropped_deltas as arrivals_module
from freshet_serving.processor.repository.log.dropped_deltas import MOST_S, SHARE, DroppedDeltas, unrecorded_deltas
from tests.support.descriptors import few_descriptors


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deltas").mkdir()
    return tmp_path


def touch(folder, *names):
    for name in names:
        (folder / "deltas" / name).write_bytes(b"x")


def steps(found):
    return [bare.step for bare in found]


def test_unrecorded_deltas_are_listed_by_ascending_step(folder):
    touch(folder, "10.safetensors", "9.safetensors", "1.safetensors")
    touch(folder, ".2.safetensors.a1b2.tmp", ".2.safetensors", "3.tmp", "04.safetensors", "x.safetensors", "5")
    touch(folder, "7-ab12cd34.safetensors")
    (folder / "deltas" / "8.safetensors").mkdir()
    os.symlink(folder / "deltas" / "1.safetensors", folder / "deltas" / "6.safetensors")
    assert steps(unrecorded_deltas(folder)) == [1, 9, 10]
    assert unrecorded_deltas(folder / "nowhere") == []


def test_unlistable_folder_is_not_treated_as_empty(folder):
    touch(folder, "2.safetensors", "7.safetensors")
    os.utime(folder / "deltas", (1, 1))
    found = DroppedDeltas(folder, lambda: 0.0)
    for _ in range(2):
        with few_descriptors(), pytest.raises(NotReady):
            found.others(2)
    assert steps(found.others(2)) == [7]


def test_next_step_is_found_by_its_file_name_alone(folder, monkeypatch):
    touch(folder, "4.safetensors", "9.safetensors")
    monkeypatch.setattr(arrivals_module, "unrecorded_deltas", lambda folder: pytest.fail("listed"))
    found = DroppedDeltas(folder, lambda: 0.0)
    assert steps(found.next(3)) == [4]
    assert found.next(4) == []
    os.symlink(folder / "deltas" / "4.safetensors", folder / "deltas" / "5.safetensors")
    assert found.next(4) == []


def test_unchanged_folder_is_not_listed_again(folder, monkeypatch):
    touch(folder, "2.safetensors", "7.safetensors", "5.safetensors")
    os.utime(folder / "deltas", (1, 1))
    listings, real = [], unrecorded_deltas
    monkeypatch.setattr(arrivals_module, "unrecorded_deltas", lambda f: listings.append(1) or real(f))
    found = DroppedDeltas(folder, lambda: 0.0)
    assert steps(found.others(2)) == [5, 7]
    assert steps(found.others(5)) == [7]
    assert len(listings) == 1
    found.again()
    assert steps(found.others(5)) == [7]
    assert len(listings) == 2


def test_listings_take_a_small_share_of_the_time(folder, monkeypatch):
    now, costs = [0.0], 0.04
    listings = []

    def list_slowly(_):
        listings.append(now[0])
        now[0] += costs
        return []

    monkeypatch.setattr(arrivals_module, "unrecorded_deltas", list_slowly)
    monkeypatch.setattr(arrivals_module.FolderWatch, "changed", lambda _: True)
    found = DroppedDeltas(folder, lambda: now[0])
    for _ in range(20 * 600):
        found.others(0)
        now[0] += 0.05
    assert 5 <= len(listings) <= 1 + (MOST_S + SHARE * now[0]) / costs
