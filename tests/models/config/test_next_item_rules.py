"""A training file for the next item: each rule that it breaks is named."""

import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput
from tests.models.training.next_item_logs import next_config, raw_config

GENRE = {"genre": {"kind": "id", "side": "item"}}


def history(folder, **changed):
    section = raw_config(folder)["sequences"]["history"] | changed
    return {"sequences": {"history": {key: value for key, value in section.items() if value is not None}}}


def test_guard_of_ranks_is_accepted(tmp_path):
    guard = next_config(tmp_path, guard={"release_windows": 3}).guard
    assert (guard.enabled, guard.release_windows) == (True, 3)


def test_file_of_a_log_is_accepted(tmp_path):
    assert next_config(tmp_path).model.options == {"dropout": 0.0, "layers": 1}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"features": GENRE}, "features: expected one feature of side item for sasrec_next"),
        ({"features": {"place": {"kind": "id"}}}, "features.place: expected only columns that sequences.history"),
        (
            {"features": {"pair": {"cross": ["user_id", "item_id"]}}},
            "features.pair.cross: expected no feature that is made",
        ),
        ({"guard": {"auc_drop": 0.1}}, "guard.auc_drop: expected nothing for sasrec_next"),
        ({"publish": {"gate": {"auc_drop": 0.1}}}, "publish.gate.auc_drop: expected nothing for sasrec_next"),
        ({"evaluate": {"by": ["user_id"]}}, "evaluate.by: expected nothing for sasrec_next"),
        ({"train": {"patience": 1}}, "train.patience: expected 0 for sasrec_next"),
        ({"train": {"schedule": "linear"}}, "train.schedule_steps: expected a number of steps"),
        ({"publish": {"precision": "int8"}}, "publish.precision: expected 'float32'"),
        ({"model": {"loss": "a:b"}}, "model.loss: expected nothing for sasrec_next"),
        ({"model": {"negatives": 0}}, "model.negatives: expected 1 to 65536"),
    ],
)
def test_file_that_breaks_a_rule_is_refused(sections, message, tmp_path):
    with pytest.raises(BadInput) as refused:
        next_config(tmp_path, **sections)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"from_events": None, "ties": None}, "sequences.history.from_events: expected the column of the user"),
        ({"ties": "exclude"}, "sequences.history.ties: expected 'file' for sasrec_next"),
        ({"keep": "oldest"}, "sequences.history.keep: expected 'newest'"),
        ({"tables": {}}, "features: expected one feature of side item"),
    ],
)
def test_sequence_that_breaks_a_rule_is_refused(changed, message, tmp_path):
    with pytest.raises(BadInput) as refused:
        parse_config(raw_config(tmp_path) | history(tmp_path, **changed))
    assert str(refused.value).startswith(message)


def test_hashed_items_are_refused(tmp_path):
    tables = {"tables": {"item_id": {"hash_rows": 100}}}
    with pytest.raises(BadInput, match=r"tables.item_id.hash_rows: not for sasrec_next"):
        parse_config(raw_config(tmp_path) | tables)


def test_user_table_that_an_online_store_has_is_refused(tmp_path):
    (tmp_path / "users.csv").write_text("user_id,city\n1,3\n")
    raw = raw_config(tmp_path, features={"city": {"kind": "id"}})
    raw["sequences"]["history"]["columns"]["city"] = "city"
    raw["user_table"] = {"user": {"key": "user_id", "path": str(tmp_path / "users.csv"), "serve": "online"}}
    raw["online_features"] = {"user": {"format": "hash"}}
    with pytest.raises(BadInput, match=r"user_table\.user\.serve: expected 'requests' for sasrec_next"):
        parse_config(raw)


def test_online_features_that_requests_do_not_have_are_refused(tmp_path):
    group = {"key": "shop", "format": "hash", "features": ["user_id"], "types": {"user_id": "int64"}}
    with pytest.raises(BadInput, match=r"online_features\.user\.features: expected one of item_id, history\.item"):
        next_config(tmp_path, online_features={"user": group})
