"""Features of linear weights and of counts: beside an embedding or alone, always last."""

import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput

PLAIN = {
    "user": {"kind": "id", "side": "user", "wide": True, "dim": 8},
    "pair": {"cross": ["user", "item"], "wide": True},
    "item": {"kind": "id", "side": "item"},
}


def parse(arch="deepfm", label="clicked", tables=None, train=None, loss=None, **features):
    return parse_config({
        "model": {"name": "m", "arch": arch} | ({"loss": loss} if loss else {}),
        "data": {"path": "log.parquet", "format": "parquet", "label": label, "time": "ts"},
        "features": PLAIN | features,
        "tables": tables or {},
        "train": train or {},
    })  # fmt: skip


def test_weights_stand_beside_a_dim_or_alone_after_all_others():
    config = parse()
    assert [(f.name, f.table, f.dim, f.column) for f in config.features] == [
        ("user", "user", 8, "user"),
        ("item", "item", 16, "item"),
        ("user.wide", "user.wide", 1, "user"),
        ("pair", "pair", 1, "pair"),
    ]
    assert config.network.wide == ("user.wide", "pair")


def test_weights_begin_as_zero_unless_their_table_says_otherwise():
    config = parse(tables={"pair": {"init": "normal"}})
    assert {name: table.init for name, table in config.tables.items()} == {"user.wide": "zeros", "pair": "normal"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "two_tower"}, "features.user.wide: expected a network with one output"),
        ({"arch": "mmoe", "label": ["a", "b"]}, "features.user.wide: expected a network with one output"),
        ({"price": {"kind": "float", "wide": True}}, "features.price.wide: only for kind id, string, ids, strings"),
        ({"tag": {"kind": "id", "wide": True, "table": "item"}}, "features.tag.wide: expected a dim, or a table"),
        ({"user.wide": {"kind": "id"}}, "features.user.wide: expected a name that no feature of wide has"),
        (
            {"tags": {"kind": "ids", "combiner": "none", "max_length": 3, "wide": True}},
            "features.tags.wide: expected a combiner that adds rows up",
        ),
    ],
)
def test_what_cannot_be_wide_is_refused(change, message):
    with pytest.raises(BadInput) as refused:
        parse(**change)
    assert str(refused.value).startswith(message)


COUNTED = {
    "user": {"kind": "id", "side": "user", "counts": True, "dim": 8},
    "pair": {"cross": ["user", "item"], "counts": True},
    "tag": {"kind": "id", "counts": True, "wide": True},
}


def test_counts_stand_before_weights_with_exact_tables_of_their_own():
    config = parse(**COUNTED)
    assert [(f.name, f.table, f.dim, f.dtype) for f in config.features] == [
        ("user", "user", 8, ""),
        ("item", "item", 16, ""),
        ("user.counts", "user.counts", 2, "float32"),
        ("pair", "pair", 2, "float32"),
        ("tag.counts", "tag.counts", 2, "float32"),
        ("tag.wide", "tag.wide", 1, ""),
    ]
    assert config.network.counts == ("user.counts", "pair", "tag.counts")
    assert config.tables["pair"].train == {"optimizer": "sgd", "learning_rate": 1.0}


def test_embedding_beside_counts_may_have_fewer_bits():
    config = parse(**(COUNTED | {"user": COUNTED["user"] | {"dtype": "float16"}}))
    assert {f.name: f.dtype for f in config.features if "user" in f.name} == {
        "user": "float16",
        "user.counts": "float32",
    }


def test_counts_keep_what_their_table_says_of_admission():
    pair = parse(tables={"pair": {"admit_after": 2}}, **COUNTED).tables["pair"]
    assert (pair.admit_after, pair.init) == (2, "zeros")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "two_tower"}, "features.user.counts: expected a network with one output"),
        ({"train": {"epochs": 2}}, "train.epochs: expected 1, because features.user.counts counts each row once"),
        ({"loss": "own:loss"}, "features.user.counts: expected the log-loss"),
        ({"tables": {"pair": {"init": "normal"}}}, "tables.pair.init: expected none, because its rows are counts"),
        ({"tables": {"pair": {"optimizer": "sgd", "learning_rate": 0.1}}}, "tables.pair.optimizer: expected none"),
        ({"tag": {"kind": "id", "counts": True, "dtype": "int8"}}, "features.tag.dtype: expected 'float32'"),
        (
            {"tags": {"kind": "ids", "counts": True, "combiner": "mean"}},
            "features.tags.counts: expected combiner 'sum'",
        ),
        ({"tag": {"kind": "id", "counts": True, "table": "item"}}, "features.tag.counts: expected a dim, or a table"),
        ({"price": {"kind": "float", "counts": True}}, "features.price.counts: only for kind id, string, ids, strings"),
    ],
)
def test_what_cannot_be_counted_is_refused(change, message):
    with pytest.raises(BadInput) as refused:
        parse(**(COUNTED | change))
    assert str(refused.value).startswith(message)


def test_parts_of_a_cross_with_decay_count_apart():
    config = parse_config({
        "model": {"name": "m", "arch": "deepfm"},
        "data": {"path": "log.parquet", "format": "parquet", "label": "clicked", "time": "ts"},
        "features": {
            "user": {"kind": "id", "side": "user"},
            "item": {"kind": "id", "side": "item"},
            "pairs": {"cross": ["history.item", "item"], "decay": "position", "counts": True},
        },
        "sequences": {"history": {"columns": {"item": "item"}, "from_events": "user", "max_length": 4}},
    })  # fmt: skip
    assert [f.table for f in config.features if f.counts] == ["pairs", "pairs.2", "pairs.3-4"]
