from dataclasses import dataclass

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.json_dataclasses import build


@dataclass(frozen=True)
class Wheel:
    size: float
    spokes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cart:
    name: str
    wheels: list[Wheel]
    spare: Wheel | None = None


def test_nested_dataclasses_are_built_with_tuples_lists_and_defaults():
    raw = {"name": "c", "wheels": [{"size": 2, "spokes": [1, 2]}], "spare": None}
    assert build(Cart, raw, "cart") == Cart("c", [Wheel(2.0, (1, 2))])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], r"cart: expected an object, got a list"),
        ({"name": "c"}, r"cart: 'wheels' is missing"),
        ({"name": "c", "wheels": [], "horn": 1}, r"cart: unknown key 'horn'"),
        ({"name": "c", "wheels": [{"size": 1e999}]}, r"cart.wheels\[0\].size: expected a finite number, got inf"),
        (
            {"name": "c", "wheels": [{"size": 1, "spokes": 7}]},
            r"cart.wheels\[0\].spokes: expected a list, got a number",
        ),
        (
            {"name": "c", "wheels": [{"size": 1, "spokes": ["a"]}]},
            r"spokes\[0\]: expected a whole number, got a string",
        ),
    ],
)
def test_every_error_names_the_field(raw, message):
    with pytest.raises(BadInput, match=message):
        build(Cart, raw, "cart")
