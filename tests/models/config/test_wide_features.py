"""Features of linear weights: beside an embedding or alone, always last."""

import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput

PLAIN = {
    "user": {"kind": "id", "side": "user", "wide": True, "dim": 8},
    "pair": {"cross": ["user", "item"], "wide": True},
    "item": {"kind": "id", "side": "item"},
}


def parse(arch="deepfm", label="clicked", tables=None, **features):
    return parse_config({
        "model": {"name": "m", "arch": arch},
        "data": {"path": "log.parquet", "format": "parquet", "label": label, "time": "ts"},
        "features": PLAIN | features,
        "tables": tables or {},
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
        (
            {"tag": {"kind": "id", "wide": True, "table": "item"}},
            "features.tag.wide: expected a dim, or a table",
        ),
        ({"user.wide": {"kind": "id"}}, "features.user.wide: expected a name that no linear weight has"),
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
