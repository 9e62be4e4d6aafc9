from collections.abc import Sequence
from typing import Annotated, Literal

import pytest

from freshet_serving.models.config.arch_options import read_options
from freshet_serving.models.zoo.arch import resolve_arch
from freshet_serving.models.zoo.architectures import ARCHITECTURES, NEXT_ITEM
from freshet_serving.models.zoo.option_types import ClosedInterval, Dropout, Hidden
from freshet_serving.processor.errors import BadInput


def annotated(
    layout,
    hidden: Hidden = (8,),
    rates: Sequence[float] = (),
    heads: Annotated[int, ClosedInterval(1, 4)] = 2,
    kind: Literal["a", "b"] = "a",
    dropout: Dropout = 0.0,
    names: tuple[str, ...] = (),
    labels=(),
    seed=0,
): ...


def plain(layout, hidden=(64, 32), rate=0.5, deep=True, name="x", layers=3, anything=None, seed=0): ...


def test_options_are_converted_to_the_types_of_the_builder():
    raw = {"hidden": [4, 2], "rates": [1, 0.5], "heads": 4, "kind": "b", "dropout": 0, "names": ["q"]}
    assert read_options(annotated, raw, "model") == {
        "hidden": (4, 2),
        "rates": (1.0, 0.5),
        "heads": 4,
        "kind": "b",
        "dropout": 0.0,
        "names": ("q",),
    }
    assert read_options(annotated, {}, "model") == {}
    assert read_options(annotated, {"hidden": []}, "model") == {"hidden": ()}


def test_defaults_give_the_option_types_without_annotations():
    raw = {"hidden": [4], "rate": 1, "deep": False, "name": "y", "layers": 2, "anything": [1, "a"]}
    assert read_options(plain, raw, "model") == raw | {"hidden": (4,), "rate": 1.0, "anything": (1, "a")}
    for key, value, wanted in (
        ("hidden", ["a"], "an integer"),
        ("rate", "a", "a number"),
        ("deep", 1, "true or false"),
        ("name", 1, "a string"),
        ("layers", True, "an integer"),
    ):
        with pytest.raises(BadInput, match=rf"model\.{key}(\[0\])?: expected {wanted}, got"):
            read_options(plain, {key: value}, "model")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"hiden": [1]},
            r"m\.hiden: unknown key; expected one of name, hidden, rates, .*, names \(did you mean 'hidden'\?\)",
        ),
        ({"seed": 1}, r"m\.seed: unknown"),
        ({"labels": ["a"]}, r"m\.labels: unknown"),
        ({"layout": 1}, r"m\.layout: unknown"),
        ({"hidden": 3}, r"m\.hidden: expected a list of integers, got an integer"),
        ({"hidden": [8, 0]}, r"m\.hidden\[1\]: expected 1 to 65536, got 0"),
        ({"heads": 5}, r"m\.heads: expected 1 to 4, got 5"),
        ({"dropout": float("nan")}, r"m\.dropout: expected 0 to 0\.95, got nan"),
        ({"kind": "c"}, r"m\.kind: expected one of a, b, got 'c'"),
        ({"kind": {}}, r"m\.kind: expected one of a, b, got a section"),
    ],
)
def test_option_unknown_to_the_builder_is_refused_in_one_line(raw, message):
    with pytest.raises(BadInput, match=message):
        read_options(annotated, raw, "m", ["name"])


def test_option_without_a_default_is_required_and_extras_are_allowed():
    def needy(layout, units, *, seed=0): ...

    def open_to_all(layout, seed=0, **options): ...

    with pytest.raises(BadInput, match=r"model\.units: required by the architecture, got nothing"):
        read_options(needy, {}, "model")
    assert read_options(needy, {"units": 3}, "model") == {"units": 3}
    assert read_options(open_to_all, {"units": [3], "x": "y"}, "model") == {"units": (3,), "x": "y"}
    with pytest.raises(BadInput, match=r"model\.seed: unknown"):
        read_options(open_to_all, {"seed": 3}, "model")


def test_unresolvable_annotations_fall_back_to_the_defaults():
    def foreign(layout, units: "keras.Nothing" = 3, seed=0): ...  # noqa: F821

    assert read_options(foreign, {"units": 4}, "model") == {"units": 4}
    with pytest.raises(BadInput, match=r"model\.units: expected an integer, got a string"):
        read_options(foreign, {"units": "a"}, "model")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_zoo_network_lists_options_and_accepts_its_defaults(name):
    import inspect

    builder = resolve_arch(name)
    given = {
        n: list(p.default) if isinstance(p.default, tuple) else p.default
        for n, p in inspect.signature(builder).parameters.items()
        if n not in ("layout", "labels", "seed")
    }
    assert {"dropout", *([] if name in NEXT_ITEM else ["hidden"])} <= given.keys()
    assert read_options(builder, given, "model").keys() == given.keys()
