import pytest

from freshet_serving.models.config.train_config import load_config, parse_config
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.section import groups_of

FILE = """
[model]
name = "ctr"
[data]
path = "clicks.csv"
label = "clicked"
[features.age]
kind = "float"
side = "user"
[features.item]
kind = "id"
[online_features.user]
key = "user_id"
format = "hash"
features = ["age"]
types = { age = "int64" }
defaults = { age = 30 }
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "train.toml").write_text(FILE)
    return tmp_path / "train.toml"


def test_package_holds_the_group_and_its_key(path):
    made = draft(load_config(path), {})
    assert [(i.name, i.dtype) for i in made.inputs] == [("age", "float32"), ("item", "int64"), ("user_id", "int64")]
    (group,) = groups_of(made)
    assert (group.name, group.features[0].input, group.features[0].default) == ("user", "age", 30)
    assert [i.name for i in made.read_inputs] == ["age", "item"]


def test_a_key_that_is_a_feature_is_no_further_input(path):
    made = draft(load_config(path, ['online_features.user.key="item"']), {})
    assert [i.name for i in made.inputs] == ["age", "item"]


@pytest.mark.parametrize(
    ("feature", "more"),
    [
        ("hist", []),
        ("items", ["online_features.user.names={items='history.item'}"]),
        ("items", ["sequences.history.from_events='item'", "online_features.user.names={items='history.item'}"]),
    ],
)
def test_online_feature_fills_the_column_of_a_sequence(path, feature, more):
    changes = [
        f"sequences.history.columns={{item='{'item' if len(more) > 1 else 'hist'}'}}",
        "sequences.history.tables={item='item'}",
        f"online_features.user.features=['{feature}']",
        f"online_features.user.types={{{feature}='int64_list'}}",
        "online_features.user.defaults={}",
        "model.arch='stca'",
        "features.item.side='item'",
    ]
    made = draft(load_config(path, [*changes, *more]), {})
    assert [f.input for f in groups_of(made)[0].features] == ["history.item"]
    assert made.expected_inputs(["item", "user_id"]) == [i for i in made.inputs if i.name != "history.item"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("features.age.from='birth'", r"online_features.user.features: no feature of the model reads 'age'"),
        ("online_features.user.defaults={age=0.5}", r"input 'age': expected a default of type int64, got '0.5'"),
        ("online_features.user.defaults={aga=1}", r"online_features.user.defaults: 'aga' is not read by this group"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(path, override, message):
    with pytest.raises(BadInput, match=message):
        load_config(path, [override])


def test_a_section_of_another_form_is_refused():
    sections = {"model": {"name": "a"}, "data": {"path": "a.csv", "label": "b"}, "features": {"c": {"kind": "id"}}}
    with pytest.raises(BadInput, match=r"online_features.user: expected a section"):
        parse_config(sections | {"online_features": {"user": 7}})


def test_section_without_the_extension_is_refused_by_name(path, without_extensions):
    without_extensions("online_features")
    with pytest.raises(BadInput, match=r"\[online_features\.user\] needs the extension 'online_features'"):
        load_config(path)


EVENTS = (
    FILE.replace("[online_features.user]", "[online_features.other]")
    + """
[features.user]
kind = "id"
side = "user"
[features.seen]
kind = "string"
[sequences.history]
columns = { item = "item", word = "seen" }
floats = { paid = "age" }
from_events = "user"
time = "ts"
store = "main"
"""
)
WRITTEN = {
    "key": "user",
    "format": "hash",
    "features": ["i", "w", "p", "t"],
    "types": {"i": "int64_list", "w": "string_list", "p": "double_list", "t": "int64_list"},
    "names": {"i": "history.item", "w": "history.word", "p": "history.paid", "t": "history.time"},
}


def stored(section=None, changes=()):
    import tomllib

    raw = tomllib.loads(EVENTS)
    raw["data"] |= {"time": "ts", "format": "csv"}
    if section is not None:
        raw["online_features"]["lists"] = section
    for path, value in changes:
        *names, key = path.split(".")
        at = raw
        for name in names:
            at = at[name]
        at[key] = value
    return parse_config(raw)


def test_a_history_that_is_written_is_read_from_hashes_of_its_own():
    group = stored().online_features["sequences.history"]
    assert (group.store, group.format, group.key_template) == ("main", "hash", "ctr:history:{user}")
    assert {f.input: (f.feature, f.type) for f in group.features} == {
        "history.item": ("item", "int64_list"),
        "history.word": ("word", "string_list"),
        "history.paid": ("paid", "float_list"),
        "history.time": ("time", "int64_list"),
    }
    assert {key.type for f in group.features for key in f.keys} == {"int64"}
    text = stored(changes=[("features.user.kind", "string")]).online_features["sequences.history"]
    assert {key.type for f in text.features for key in f.keys} == {"string"}


def test_a_history_that_is_written_is_read_by_the_group_that_has_it():
    groups = stored(WRITTEN).online_features
    assert sorted(groups) == ["lists", "other"]


@pytest.mark.parametrize(
    ("section", "changes", "why"),
    [
        (WRITTEN | {"store": "other"}, [], r"lists\.store: expected sequences\.history\.store, 'main', got 'other'"),
        (WRITTEN | {"key": "item"}, [], r"lists\.key: expected 'user', of its type"),
        (WRITTEN | {"key_types": {"user": "string"}}, [], r"lists\.key: expected 'user', of its type"),
        (
            WRITTEN | {"types": WRITTEN["types"] | {"i": "int32_list"}},
            [],
            r"lists\.types: 'i': expected int64_list, got 'int32_list'",
        ),
        (
            {
                "key": "user",
                "format": "hash",
                "features": ["i"],
                "types": {"i": "int64_list"},
                "names": {"i": "history.item"},
            },
            [],
            "expected all columns of .sequences.history., which are written to one store, in one group, got 'none for",
        ),
        (
            WRITTEN | {"features": [*WRITTEN["features"], "user"], "types": WRITTEN["types"] | {"user": "int64"}},
            [("sequences.history.ttl_s", 60.0)],
            "whose ttl_s is the keys' expiry, got 'others beside them'",
        ),
        (None, [("sequences.history.from_events", "")], r"sequences\.history\.(store|where): only with from_events"),
    ],
)
def test_a_history_that_is_read_otherwise_than_it_is_written_is_refused(section, changes, why):
    with pytest.raises(BadInput, match=why):
        stored(section, changes)
