"""A file with a history and no network gets counts and crosses; whoever says what they want gets that alone."""

import pytest

from freshet_serving.models.config.sequence_defaults import with_sequence_defaults
from freshet_serving.models.config.train_config import parse_config

LOG = {
    "model": {"name": "shop"},
    "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
    "features": {
        "user": {"kind": "id", "side": "user"},
        "item": {"kind": "id", "side": "item"},
        "category": {"kind": "string", "side": "item", "dim": 4},
        "hour": {"kind": "id", "transform": "hour"},
        "price": {"kind": "float"},
    },
    "sequences": {
        "history": {"columns": {"item": "item", "category": "category"}, "from_events": "user", "max_length": 50}
    },
}


def parse(**sections):
    return parse_config(LOG | sections)


def counted(config):
    return [f.name for f in config.features if f.counts]


def test_ids_newest_events_and_what_users_and_hours_have_to_do_with_categories_are_counted():
    config = parse()
    assert config.model.arch == "deepfm"
    assert counted(config) == [
        *("user.counts", "item.counts", "category.counts", "hour.counts"),
        *("history-item-item", "history-item-item.2", "history-item-item.3-4", "history-item-item.5-8"),
        *("history-category-category", "history-category-category.2"),
        *("history-item-item-equal", "history-item-item-equal-category"),
        *("user-category", "hour-category"),
    ]
    crossed = {f.name: (f.cross, f.side) for f in config.features if f.cross}
    assert crossed["history-item-item"] == (("history.item", "item"), "item")
    assert crossed["history-item-item-equal-category"] == (("history.item", "item", "category"), "item")
    assert crossed["user-category"] == (("user", "category"), "item")
    assert {f.name: f.dim for f in config.features if not f.counts and f.table}["category"] == 4


def test_rows_are_learned_in_the_order_of_the_log_unless_the_file_shuffles_them():
    train = parse().train
    assert (train.shuffle_rows, train.learning_rate) == (0, 0.0)
    assert parse(train={"shuffle_rows": 9}).train.shuffle_rows == 9


def test_tables_that_are_shared_say_what_a_list_column_has_to_do_with_a_candidate():
    config = parse(
        sequences={"seen": {"columns": {"product": "seen_items", "shop": "seen_shops"}, "tables": {"product": "item"}}}
    )
    assert [name for name in counted(config) if "seen" in name] == [
        *("seen-product-item", "seen-product-item.2", "seen-product-item.3-4", "seen-product-item.5-8"),
        *("seen-product-item-equal", "seen-product-item-equal-category"),
    ]
    assert counted(config)[-2:] == ["user-category", "hour-category"]


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"name": "shop", "arch": "deepfm"}},
        {"model": {"name": "shop", "loss": "own:loss"}},
        {"features": LOG["features"] | {"last": {"kind": "id", "from": "history.item", "take": -1}}},
        {"features": LOG["features"] | {"pairs": {"cross": ["history.item", "item"]}}},
        {"features": LOG["features"] | {"pair": {"cross": ["user", "item"], "wide": True}}},
        {"sequences": {}},
        {"sequences": {"seen": {"columns": {"product": "products"}}}},
    ],
)
def test_file_that_says_more_or_has_no_history_is_left_alone(sections):
    assert with_sequence_defaults(LOG | sections, ["clicked"]) == LOG | sections


def test_several_labels_are_left_alone():
    assert with_sequence_defaults(LOG, ["clicked", "bought"]) == LOG
