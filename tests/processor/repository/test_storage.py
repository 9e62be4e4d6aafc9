"""A version's place where that is the folder it is read from."""

import pytest

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.repository.storage import FolderStorage, newest
from tests.support.packages import write_package


@pytest.fixture
def storage(tmp_path):
    return FolderStorage(write_package(tmp_path))


def test_name_can_be_created_only_once(storage):
    storage.create("chain/0000000001.json", b"one")
    with pytest.raises(FileExistsError):
        storage.create("chain/0000000001.json", b"two")
    assert (storage.folder / "chain" / "0000000001.json").read_bytes() == b"one"


def test_replace_overwrites_a_file(storage):
    storage.replace("model.json", b"{}")
    assert (storage.folder / "model.json").read_bytes() == b"{}"


def test_removing_a_missing_file_is_allowed(storage):
    storage.remove("tables")
    storage.remove("tables")
    storage.remove("model.json")
    assert not storage.has("model.json")
    assert not (storage.folder / "tables").exists()


def test_existing_version_is_not_replaced(storage, tmp_path):
    (tmp_path / "built").mkdir()
    with pytest.raises(Conflict, match="already exists"):
        storage.install(tmp_path / "built")


def test_ended_version_leaves_nothing_visible(storage):
    storage.end()
    assert list(storage.folder.parent.iterdir()) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_newest_number_is_found_in_logarithmic_time(count):
    looks = []
    assert newest(lambda number: looks.append(number) or number <= count) == count
    assert len(looks) <= 2 * count.bit_length() + 2
