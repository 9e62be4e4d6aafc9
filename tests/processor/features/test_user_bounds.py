"""Bounds of older user parts: spelled as they are parsed."""

import json

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.user_bounds import OldestUsers, UserBounds


@pytest.mark.parametrize("spelled", [{"steps": 1}, {"age_s": 0.5}, {"steps": 1 << 31, "age_s": 86400.0}])
def test_bounds_are_spelled_as_they_are_parsed(spelled):
    bounds = OldestUsers.parse(json.loads(json.dumps(spelled)), "m.user_state")
    assert bounds.spelled == spelled
    assert (bounds.steps, bounds.age_s) == (spelled.get("steps"), spelled.get("age_s"))
    assert UserBounds(bounds).step is None


@pytest.mark.parametrize(
    "raw", [{}, {"steps": 1 << 32}, {"steps": None}, {"age_s": -1.0}, {"age_s": True}, {"s": 1}, 5]
)
def test_wrong_bounds_are_named(raw):
    with pytest.raises(BadInput, match=r"^m\.user_state"):
        OldestUsers.parse(raw, "m.user_state")
