"""The state of a join: what is written is read again, and anything else is refused by its field."""

import json
import math

import pytest

from freshet_serving.models.streams.join_state import JoinState
from freshet_serving.models.streams.matching import JoinCounts, OpenOutcomes
from freshet_serving.processor.errors import BadInput, Corrupt

STATE = JoinState(
    "ctr",
    {"key": "row", "wait": 600.0, "late": 86400.0, "window": 600.0},
    17,
    OpenOutcomes(3, 9, frozenset({3, 8})),
    JoinCounts(rows=17, positives=2),
    {"4": [1.0, 2.0, 3.0]},
    {"600": {"rows": 17}},
    1.5,
    2.5,
    4,
    (b"\x03\0\0\0r170", b""),
)


def written(state=STATE, **changes):
    return json.loads(json.dumps({**state.to_json(), **changes}))


def test_state_round_trips():
    assert JoinState.from_json(written()) == STATE
    begun = JoinState("ctr", STATE.settings)
    assert JoinState.from_json(written(begun)) == begun


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 1), ("settings", []), ("settings", {}), ("settings", {**STATE.settings, "wait": "x"}),
        ("recordings", -1), ("recordings", True), ("recordings", 1 << 70), ("outcomes", None), ("counts", 1),
        ("share", []), ("windows", ""), ("until_s", math.nan), ("newest_s", "x"), ("oldest_late", 0.5),
        ("disowned", {}), ("disowned", [1]), ("disowned", ["!"]), ("disowned", ["é"]),
    ],
)  # fmt: skip
def test_field_with_a_wrong_type_is_refused_by_name(name, value):
    with pytest.raises(Corrupt, match=f"state of a join: {name}"):
        JoinState.from_json(written(**{name: value}))


def test_unknown_format_is_refused():
    with pytest.raises(BadInput, match=r"--out: expected a folder of format 'freshet-join/1', got 'freshet-join/2'"):
        JoinState.from_json(written(format="freshet-join/2"))


@pytest.mark.parametrize("end", [2, 17, 1 << 40])
def test_outcome_bits_outside_their_range_are_refused_before_unpacking(end):
    with pytest.raises(Corrupt, match="open outcomes"):
        JoinState.from_json(written(outcomes={**STATE.outcomes.to_json(), "end": end}))
