import pytest

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_config import load_config, parse_config
from freshet_serving.models.training.fingerprint import changed, fingerprint, settings
from freshet_serving.processor.errors import BadInput

FILE = """
[model]
name = "ctr"
[data]
path = "clicks.csv"
label = "clicked"
[features.user]
kind = "id"
[features.seen]
kind = "ids"
table = "item.v2"
[train]
optimizer = "adagrad"
[tables.user]
admit_after = 3
"""


def config(train=None, **tables):
    return parse_config(
        {
            "model": {"name": "ctr"},
            "data": {"path": "clicks.csv", "label": "clicked"},
            "features": {"user": {"kind": "id"}, "item": {"kind": "id"}},
            "train": {"optimizer": "adagrad"} | (train or {}),
            "tables": tables,
        }
    )


def test_table_has_the_values_of_its_section_and_defaults():
    read = config(user={"admit_after": 2, "admit_by": "bloom", "admit_ids": 500, "evict_after_steps": 9}, item={})
    assert read.tables["user"] == TableConfig(2, "bloom", 500, 9)
    assert read.tables["item"] == TableConfig()
    assert config().tables == {}


def test_table_train_keys_override_those_of_the_run():
    read = config(user={"optimizer": "ftrl", "l1": 0.5, "learning_rate": 1})
    assert read.tables["user"].train == {"optimizer": "ftrl", "l1": 0.5, "learning_rate": 1.0}
    assert config(user={"initial_accumulator": 0.5}).tables["user"].train == {"initial_accumulator": 0.5}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"admit_affter": 2}, r"tables\.user\.admit_affter: unknown key; .* \(did you mean 'admit_after'\?\)"),
        ({"learning_rat": 2}, r"tables\.user\.learning_rat: unknown key; .* \(did you mean 'learning_rate'\?\)"),
        ({"train": {}}, r"tables\.user\.train: unknown"),
        ({"batch_rows": 5}, r"tables\.user\.batch_rows: unknown"),
        ({"admit_after": 0}, r"tables\.user\.admit_after: expected 1 to 65535, got 0"),
        ({"admit_after": 65_536}, r"tables\.user\.admit_after: expected 1 to 65535, got 65536"),
        ({"admit_after": 2.0}, r"tables\.user\.admit_after: expected an integer, got a number"),
        ({"admit_after": True}, r"tables\.user\.admit_after: expected an integer, got true or false"),
        ({"admit_after": 2, "admit_by": "blom"}, r"tables\.user\.admit_by: expected one of counts, bloom, got 'blom'"),
        ({"admit_by": "bloom"}, r"tables\.user\.admit_by: only with admit_after 2 or more; this one is 1"),
        ({"admit_after": 2, "admit_ids": 9}, r"tables\.user\.admit_ids: only with admit_by 'bloom'; .* 'counts'"),
        ({"admit_after": 2, "admit_by": "bloom", "admit_ids": 0}, r"tables\.user\.admit_ids: expected 1 to \d+, got 0"),
        ({"evict_after_steps": -1}, r"tables\.user\.evict_after_steps: expected 0 to \d+, got -1"),
        ({"evict_below_norm": float("inf")}, r"tables\.user\.evict_below_norm: expected 0 to 1000000.0, got inf"),
        ({"evict_below_norm": "1"}, r"tables\.user\.evict_below_norm: expected a number, got a string"),
        ({"memory_mb": -1}, r"tables\.user\.memory_mb: expected 0 to \d+, got -1"),
        ({"memory_mb": 1.5}, r"tables\.user\.memory_mb: expected an integer, got a number"),
        ({"memory_mb": 1, "cache": "lru"}, r"tables\.user\.cache: unknown key; .* \(ended: always lfu\)"),
        ({"init": "xavier"}, r"tables\.user\.init: expected one of uniform, normal, zeros, got 'xavier'"),
        ({"init": "zeros", "init_scale": 0.1}, r"tables\.user\.init_scale: only with init 'uniform' or 'normal'"),
        ({"init_scale": -0.1}, r"tables\.user\.init_scale: expected 0 to 1000000.0, got -0.1"),
        (
            {"hash": "kway"},
            r"tables\.user\.hash: expected one of none, quotient_remainder, k_way, binary_code, got 'kway'",
        ),
        ({"hash": "k_way"}, r"tables\.user\.hash_rows: required with hash 'k_way'"),
        ({"hash": "none", "hash_rows": 9}, r"tables\.user\.hash_rows: not with hash 'none'"),
        ({"hash_rows": 3}, r"tables\.user\.hash_rows: expected 4 to 2147483647, got 3"),
        ({"hash": "k_way", "hash_rows": 9, "hash_codes": 5}, r"tables\.user\.hash_rows: expected 10 to 2147483647"),
        ({"hash_rows": 9, "hash_codes": 2}, r"tables\.user\.hash_codes: only with hash 'k_way' or 'binary_code'"),
        (
            {"hash": "quotient_remainder", "hash_rows": 9, "hash_codes": 2},
            r"tables\.user\.hash_codes: not with hash 'quotient_remainder', which always has 2",
        ),
        ({"hash": "k_way", "hash_rows": 9, "hash_codes": 17}, r"tables\.user\.hash_codes: expected 1 to 16, got 17"),
        ({"hash_rows": 9, "admit_after": 2}, r"tables\.user\.admit_after: not with hash_rows"),
        ({"hash_rows": 9, "evict_after_steps": 2}, r"tables\.user\.evict_after_steps: not with hash_rows"),
        ({"optimizer": "adagrat"}, r"tables\.user\.optimizer: expected one of .* \(did you mean 'adagrad'\?\)"),
        ({"optimizer": "sgd"}, r"tables\.user\.learning_rate: required with sgd"),
        ({"optimizer": "adam", "l1": 1}, r"tables\.user\.l1: only for ftrl; the optimizer is 'adam'"),
        ({"l1": 1}, r"tables\.user\.l1: only for ftrl; the optimizer is 'adagrad'"),
        ({"learning_rate": 0}, r"tables\.user\.learning_rate: expected a number above 0"),
    ],
)
def test_mistake_gives_a_one_line_error_naming_the_key(section, message):
    with pytest.raises(BadInput, match=message) as refused:
        config(user=section)
    assert "\n" not in str(refused.value)


def test_section_of_an_unknown_table_is_refused():
    with pytest.raises(
        BadInput, match=r"tables\.usr: expected the table of a feature, one of item, user \(did you mean 'user'\?\)"
    ):
        config(usr={})
    with pytest.raises(BadInput, match=r"tables\.user: expected a section \[tables\.user\], got an integer"):
        config(user=3)
    with pytest.raises(
        BadInput, match=r"tables\.user\.learning_rate: required, because train\.learning_rate is for sgd"
    ):
        config({"optimizer": "sgd", "learning_rate": 0.5}, user={"optimizer": "adam"})


def test_command_line_overrides_a_key_or_starts_a_section(tmp_path):
    (tmp_path / "train.toml").write_text(FILE)
    read = load_config(
        tmp_path / "train.toml",
        ["tables.user.admit_after=5", "tables.item.v2.evict_after_steps=7", 'tables.user.init="zeros"'],
    )
    assert read.tables == {
        "user": TableConfig(admit_after=5, init="zeros"),
        "item.v2": TableConfig(evict_after_steps=7),
    }
    with pytest.raises(BadInput, match=r"tables\.usr: expected the table of a feature"):
        load_config(tmp_path / "train.toml", ["tables.usr.admit_after=5"])
    with pytest.raises(BadInput, match=r"--set: expected section\.key=value"):
        load_config(tmp_path / "train.toml", ["tables=5"])


def test_checkpoints_continue_when_ids_and_slots_are_unchanged():
    before = config()
    for same in ({}, {"evict_after_steps": 5, "evict_below_norm": 0.1, "init": "normal", "learning_rate": 0.3}):
        assert fingerprint(config(user=same)) == fingerprint(before)
    for other, told in (
        ({"admit_after": 2}, "tables.user.admit_after was not set and is 2"),
        ({"optimizer": "adam"}, "tables.user.optimizer was not set and is 'adam'"),
    ):
        now = config(user=other)
        assert fingerprint(now) != fingerprint(before)
        assert changed(settings(before), settings(now)) == told
