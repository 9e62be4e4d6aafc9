import dataclasses

import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training.fingerprint import changed, fingerprint, settings


def config(model=None, train=None, fusion=None, publish=None, **features):
    columns = {"user": {"kind": "id", "dim": 4}, "price": {"kind": "float"}} | features
    columns = {name: spec for name, spec in columns.items() if spec}
    return parse_config(
        {
            "model": {"name": "shop", **(model or {})},
            "data": {"path": "x", "format": "csv", "label": "y"},
            "features": columns,
            "train": {"optimizer": "adagrad"} | (train or {}),
            "publish": publish or {},
            "fusion": fusion or {},
        }
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"train": {"optimizer": "ftrl"}}, "train.optimizer was 'adagrad' and is 'ftrl'"),
        ({"train": {"seed": 4}}, "train.seed was 0 and is 4"),
        (
            {"model": {"arch": "dlrm", "hidden": [8]}},
            "model.arch was 'deepfm' and is 'dlrm', model.hidden was [] and is [8]",
        ),
        (
            {"model": {"arch": "dcn", "cross_layers": 2}},
            "model.arch was 'deepfm' and is 'dcn', model.cross_layers was not set and is 2",
        ),
        ({"model": {"loss": "mine:focal"}}, "model.loss was not set and is 'mine:focal'"),
        ({"user": {"kind": "id", "dim": 8}}, "features.user.dim was 4 and is 8"),
        ({"user": {"kind": "string", "dim": 4}}, "features.user.kind was 'id' and is 'string'"),
        ({"user": None, "who": {"kind": "id"}}, "features.user was removed, features.who was added"),
        ({"user": None, "price": {"kind": "float"}}, "features.user was removed"),
        ({"fusion": {"final": "score * 2"}}, "fusion.final was not set and is 'score * 2'"),
    ],
)
def test_incompatible_change_is_named_with_old_and_new_values(other, words):
    before, now = config(), config(**other)
    assert fingerprint(before) != fingerprint(now)
    assert changed(settings(before), settings(now)) == words


def test_change_of_a_sequence_is_named_once():
    def shop(most):
        raw = {
            "model": {"name": "shop", "arch": "din"},
            "data": {"path": "x", "format": "csv", "label": "y", "time": "t"},
            "features": {
                "user": {"kind": "id", "side": "user"},
                "item": {"kind": "id", "side": "item"},
                "last": {"kind": "id", "from": "h.item", "take": -1},
            },
            "sequences": {
                "h": {
                    "columns": {"item": "item"},
                    "tables": {"item": "item"},
                    "from_events": "user",
                    "max_length": most,
                }
            },
        }
        return settings(parse_config(raw))

    words = "features.h.item.max_length was 6 and is 5, sequences.h.max_length was 6 and is 5"
    assert changed(shop(6), shop(5)) == words


def test_feature_order_changes_the_fingerprint():
    before = config()
    now = dataclasses.replace(before, features=before.features[::-1])
    assert fingerprint(before) != fingerprint(now)
    assert changed(settings(before), settings(now)) == "the order of the features has changed"


@pytest.mark.parametrize(
    "other",
    [
        {"train": {"learning_rate": 0.3, "batch_rows": 7, "epochs": 3, "holdout": 0.2, "dense_learning_rate": 0.1}},
        {"publish": {"full_rows": 10, "delta_rows": 5, "table_dtype": "int8", "snapshot_after": 7}},
        {"user": {"kind": "id", "dim": 4, "side": "user", "dtype": "int8", "unsigned": True}},
    ],
)
def test_harmless_changes_keep_the_fingerprint(other):
    assert fingerprint(config(**other)) == fingerprint(config())
    assert changed(settings(config()), settings(config(**other))) == ""


def test_checkpoint_without_settings_lists_all_possible_changes():
    assert "train.optimizer" in changed({}, settings(config()))


def bucketed(**keys):
    return config(age={"from": "price", "transform": "bucketize", "boundaries": [1, 2], "dim": 4} | keys)


def test_feature_definition_changes_the_fingerprint():
    before, after = bucketed(), bucketed(boundaries=[1, 3])

    assert fingerprint(before) != fingerprint(after)
    assert changed(settings(before), settings(after)) == ("features.age.boundaries was [1.0, 2.0] and is [1.0, 3.0]")
    assert changed(settings(config()), settings(before)) == "features.age was added"


def test_plain_features_keep_their_original_fingerprint_keys():
    kept = {key.rpartition(".")[2] for key in settings(config()) if key.startswith("features.")}
    assert kept == {"kind", "table", "dim", "combiner", "max_length", "transform"}


def test_floats_of_a_history_change_the_fingerprint_and_older_files_keep_theirs():
    def history(**section):
        raw = {"columns": {"item": "items"}, "tables": {"item": "item"}} | section
        features = {"item": {"kind": "id", "side": "item", "dim": 4}}
        data = {"path": "x", "format": "csv", "label": "y"}
        made = {"model": {"name": "shop", "arch": "din"}, "data": data, "features": features}
        return parse_config(made | {"sequences": {"h": raw}})

    before, now = history(), history(floats={"paid": "prices"})
    assert fingerprint(before) == "050e14161ff2b46c"
    assert fingerprint(before) != fingerprint(now)
    assert "features.h.paid was added" in changed(settings(before), settings(now))


def test_where_events_are_kept_and_written_keeps_the_fingerprint():
    def history(**section):
        raw = {"columns": {"item": "item"}, "tables": {"item": "item"}, "from_events": "user"} | section
        features = {"user": {"kind": "id"}, "item": {"kind": "id", "side": "item", "dim": 4}}
        data = {"path": "x", "format": "csv", "label": "y", "time": "ts"}
        made = {"model": {"name": "shop", "arch": "din"}, "data": data, "features": features}
        return fingerprint(parse_config(made | {"sequences": {"h": raw}}))

    assert history() == history(memory_mb=1, store="main") != history(ttl_s=60.0)


def test_checkpoint_of_labels_continues_with_labels_alone():
    items = {"item": {"kind": "id", "side": "item"}}
    user = {"kind": "id", "dim": 4, "side": "user"}
    labels, pairs = (config({"arch": "two_tower", **loss}, user=user, **items) for loss in ({"loss": "log_loss"}, {}))
    # As in checkpoints from before there was another loss.
    assert "model.loss" not in settings(labels)
    assert changed(settings(labels), settings(pairs)) == "model.loss was not set and is 'softmax'"
    assert fingerprint(labels) != fingerprint(pairs)


def test_several_labels_change_the_fingerprint_and_older_files_keep_theirs():
    one = {"data": {"path": "x", "format": "csv", "label": "y"}, "features": {"user": {"kind": "id"}}}
    two = one | {"data": one["data"] | {"label": ["y", "z"]}}
    before, now = (parse_config({"model": {"name": "shop", "arch": "mmoe"}} | raw) for raw in (one, two))

    assert fingerprint(before) != fingerprint(now)
    assert changed(settings(before), settings(now)) == "data.label was not set and is ['y', 'z']"
    as_ever = parse_config({"model": {"name": "shop", "hidden": [8]}} | one)
    assert fingerprint(as_ever) == "fa65872a2c8e256d"
