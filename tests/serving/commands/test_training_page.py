import dataclasses

import pytest

from freshet_serving.serving.commands.training_keys import DATA, SECTIONS
from freshet_serving.serving.commands.training_page import PAGE, page


def test_the_page_of_the_training_file_is_current():
    assert PAGE.read_text() == page(), "make docs-reference"


def test_a_key_that_is_not_told_of_and_a_line_without_a_key_end_the_making(monkeypatch):
    for keys in ({**DATA.keys, "colour": "what"}, {key: DATA.keys[key] for key in list(DATA.keys)[1:]}):
        told = [dataclasses.replace(each, keys=keys) if each is DATA else each for each in SECTIONS]
        monkeypatch.setattr("freshet_serving.serving.commands.training_page.SECTIONS", told)
        with pytest.raises(KeyError, match=r"\[data\]: (colour|path)"):
            page()
