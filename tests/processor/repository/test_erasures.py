"""Requests to forget users: durable, without their keys, and answered once."""

import pytest

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.repository import Erasures


def hashed(text):
    return int(hash_strings(Strings.of([text]), 0)[0])


@pytest.mark.parametrize(
    ("key", "numbers"),
    [
        ("ann", {hashed("ann")}),
        ("17", {17, hashed("17")}),
        ("-3", {-3, hashed("-3")}),
        (str(2**64 - 1), {-1, hashed(str(2**64 - 1))}),
        (str(2**64), {hashed(str(2**64))}),
        ("Zoë", {hashed("Zoë")}),
    ],
)
def test_key_is_asked_for_by_the_numbers_that_histories_know_it_by(tmp_path, key, numbers):
    erasures = Erasures(tmp_path)
    assert erasures.asked() == {}
    erasures.ask(key)
    erasures.ask(key)
    assert erasures.asked().keys() == numbers
    assert not any(key in path.name for path in erasures.asked().values() if not key.lstrip("-").isdigit())
    erasures.answered(erasures.asked().values())
    assert erasures.asked() == {}


@pytest.mark.parametrize("key", ["", "x" * 1025])
def test_key_of_another_length_is_refused(tmp_path, key):
    with pytest.raises(BadInput, match="expected a user's key of 1 to 1024 bytes"):
        Erasures(tmp_path).ask(key)


def test_key_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"^key: expected a user's key in UTF-8, got other bytes$"):
        Erasures(tmp_path).ask("\udcff")


def test_folder_without_a_trainer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected the folder of the trainer of 'shop'"):
        Erasures.of_model(tmp_path, "shop")
    with pytest.raises(BadInput):
        Erasures.of_model(tmp_path, "../shop")


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "erase").mkdir()
    (tmp_path / "erase" / "notes.txt").touch()
    assert Erasures(tmp_path).asked() == {}
