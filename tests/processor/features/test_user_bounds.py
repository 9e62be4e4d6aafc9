"""Bounds of older user parts: spelled as they are parsed."""

import json

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.user_bounds import OldestUsers, UserBounds


@pytest.mark.parametrize(
    "spelled",
    [{"steps": 1}, {"age_s": 0.5}, {"steps": 1 << 31, "age_s": 86400.0}, {"dtype": "float32"}, {"dtype": "float16"},
     {"steps": 2, "age_s": 1.0, "dtype": "float16"}],
)  # fmt: skip
def test_bounds_are_spelled_as_they_are_parsed(spelled):
    bounds = OldestUsers.parse(json.loads(json.dumps(spelled)), "m.user_state")
    assert bounds.spelled == spelled
    assert (bounds.steps, bounds.age_s) == (spelled.get("steps"), spelled.get("age_s"))
    assert bounds.bounded == ("steps" in spelled or "age_s" in spelled)
    assert bounds.rounded == (spelled.get("dtype") == "float16")
    assert UserBounds(bounds).step is None


@pytest.mark.parametrize(
    "raw",
    [{}, {"steps": 1 << 32}, {"steps": None}, {"age_s": -1.0}, {"age_s": True}, {"s": 1}, {"dtype": "int8"},
     {"dtype": None}, {"dtype": ["float16"]}, {"dtype": "float16", "steps": 0}, 5],
)  # fmt: skip
def test_wrong_bounds_are_named(raw):
    with pytest.raises(BadInput, match=r"^m\.user_state"):
        OldestUsers.parse(raw, "m.user_state")


def test_part_of_a_request_tells_the_whole_that_it_used_a_rounded_user():
    assert UserBounds(OldestUsers(3)).exact() is None
    whole = UserBounds(OldestUsers(3, 1.0, "float16"))
    parts = [whole.exact(), whole.exact()]
    assert [(part.oldest.bounded, part.oldest.rounded) for part in parts] == [(False, True)] * 2
    parts[0].used(7)
    parts[1].step = None
    assert whole.step == 7
