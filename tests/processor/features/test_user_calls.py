"""Which inputs describe the user, and what a server without kept users answers."""

import numpy as np
import pytest

from freshet_serving.processor.features.user_calls import not_kept, roles_of
from freshet_serving.processor.package import (
    EntityEntry,
    Feature,
    Input,
    InputFiller,
    Manifest,
    Output,
    SequenceEntry,
    TableEntry,
    Transform,
)


def manifest(features, inputs, **more):
    specs = [Input(name, "int64") for name in inputs]
    return Manifest("m", 1, "a", 0.0, specs, features, [TableEntry("t", 4, 0)], [Output("score")], 4, {}, {}, **more)


def feature(name, side, source=None):
    return Feature(name, "id", source or name, side=side, table="t")


def test_sides_of_features_tell_roles():
    made = manifest([feature("u", "user"), feature("i", "item"), feature("c", "context")], "uic")
    assert roles_of(made) == ({"u"}, {"i"})


def test_input_that_both_sides_read_is_the_candidates():
    made = manifest([feature("u", "user", "x"), feature("i", "item", "x")], "x")
    assert roles_of(made) == (frozenset(), {"x"})


def test_model_without_candidates_of_its_own_has_all_others_for_them():
    assert roles_of(manifest([feature("a", "context"), feature("b", "context")], "ab")) == (frozenset(), {"a", "b"})
    assert roles_of(manifest([feature("u", "user")], "u")) == ({"u"}, frozenset())


def test_columns_of_sequences_and_what_transforms_read_are_the_users():
    sequence = SequenceEntry("h", [], 4, 0, ["h.item", "h.time"], time="h.time")
    crossed = Transform("x", "cross", ["u", "v"], {})
    features = [feature("f", "user", "x"), feature("i", "item")]
    made = manifest(features, ["u", "v", "i", "h.item", "h.time"], sequences=[sequence], transforms=[crossed])
    assert roles_of(made) == ({"u", "v", "h.item", "h.time"}, {"i"})


def test_keys_of_entities_are_candidates_and_keys_of_users_are_the_users():
    entity = EntityEntry("item", "item", ["price"])
    features = [feature("p", "item", "price"), feature("age", "user")]
    made = manifest(features, ["item", "price", "age", "user"], entities=[entity])
    made.fillers["age"] = InputFiller("online features", "user", ("user",))
    assert roles_of(made) == ({"age", "user"}, {"item", "price"})


@pytest.mark.parametrize(
    ("sent", "ranks", "told"),
    [("ui", False, ""), ("u", False, "input 'i' is missing"), ("u", True, ""), ("", True, "input 'u' is missing")],
)
def test_server_without_kept_users_needs_whole_requests(sent, ranks, told):
    made = manifest([feature("u", "user"), feature("i", "item")], "ui")
    error = not_kept(made, dict.fromkeys(sent, np.zeros(1)), ranks)
    assert (error is None) == (not told)
    if error is not None:
        assert str(error).startswith(told)
        assert "freshet serve --user-state-mb" in str(error)
