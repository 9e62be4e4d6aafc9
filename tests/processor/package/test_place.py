"""A version's place where that is the folder it is read from."""

import pytest

from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package.place import FolderPlace, newest
from tests.packages import write_package


@pytest.fixture
def place(tmp_path):
    return FolderPlace(write_package(tmp_path))


def test_a_name_is_given_once(place):
    place.create("chain/0000000001.json", b"one")
    with pytest.raises(FileExistsError):
        place.create("chain/0000000001.json", b"two")
    assert (place.folder / "chain" / "0000000001.json").read_bytes() == b"one"


def test_a_file_is_put_in_the_place_of_another(place):
    place.replace("model.json", b"{}")
    assert (place.folder / "model.json").read_bytes() == b"{}"


def test_what_is_removed_is_gone_and_may_be_gone_already(place):
    place.remove("tables")
    place.remove("tables")
    place.remove("model.json")
    assert not place.has("model.json")
    assert not (place.folder / "tables").exists()


def test_a_version_that_is_there_is_not_replaced(place, tmp_path):
    (tmp_path / "built").mkdir()
    with pytest.raises(Conflict, match="exists already"):
        place.settle(tmp_path / "built")


def test_a_version_ends_for_whoever_looks(place):
    place.end()
    assert list(place.folder.parent.iterdir()) == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_the_newest_is_found_in_few_looks(count):
    looks = []
    assert newest(lambda number: looks.append(number) or number <= count) == count
    assert len(looks) <= 2 * count.bit_length() + 2
