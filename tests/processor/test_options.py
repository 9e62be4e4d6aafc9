from dataclasses import dataclass, field

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import above, between, check, default_of, one_of, option, options_of, required


@dataclass
class Some:
    name: str = field(metadata=required("Whose", one_of("a", "b")))
    count: int = option(0, "How many", between(0, 9, "any"))
    share: float = option(0.5, "What part", above(0, 1))
    wait_s: float = option(0.0, "How long", between(0, 60), unit="seconds")
    token: str = option("", "Secret", one_of("", "x"), repr=False)
    tags: list[str] = option([], "Words", empty="all")
    other: int = 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "c"}, "x.name: expected one of a, b, got 'c'"),
        ({"name": ""}, "x.name: expected one of a, b, got nothing"),
        ({"count": 10}, "x.count: expected 0 (any) to 9, got 10"),
        ({"share": 0.0}, "x.share: expected more than 0, at most 1, got 0"),
        ({"share": float("nan")}, "x.share: expected more than 0, at most 1, got nan"),
        ({"wait_s": 1e3}, "x.wait_s: expected 0 to 60, got 1000"),
        ({"token": "secret"}, "x.token: expected one of , x"),
    ],
)
def test_invalid_option_value_is_named_and_a_secret_hidden(values, message):
    with pytest.raises(BadInput) as caught:
        check(Some(**{"name": "a", **values}), "x.")
    assert str(caught.value) == message


def test_option_values_at_the_bounds_are_accepted():
    check(Some("b", count=9, share=1.0, wait_s=60.0, token="x"))


def test_option_unit_range_and_default_are_described():
    told = {each.name: (default_of(each), about.facts) for each, about in options_of(Some)}
    assert told == {
        "name": ("", "One of a, b."),
        "count": ("0", "0 (any) to 9."),
        "share": ("0.5", "More than 0, at most 1."),
        "wait_s": ("0", "Seconds, 0 to 60."),
        "token": ("none", "One of , x."),
        "tags": ("all", ""),
    }


def test_each_instance_has_its_own_list():
    one, other = Some("a"), Some("a")
    one.tags.append("x")
    assert (one.tags, other.tags, Some("a").tags) == (["x"], [], [])
