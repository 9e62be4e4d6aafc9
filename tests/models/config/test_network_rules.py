"""What a network of the zoo cannot read is refused by the file alone, in one line, before TensorFlow is imported."""

import subprocess
import sys

import pytest

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.processor.errors import BadInput

FEATURES = {"user": {"kind": "id", "side": "user"}, "item": {"kind": "id", "side": "item"}}
LISTS = {"seen": {"columns": {"item": "items"}, "tables": {"item": "item"}}}
LAST = {"kind": "id", "from": "seen.item", "take": -1}


def parse(arch, labels="clicked", features=FEATURES, sequences=None, fusion=None):
    return parse_config({
        "model": {"name": "m", "arch": arch},
        "data": {"path": "log.parquet", "format": "parquet", "label": labels, "time": "ts"},
        "features": features,
        "sequences": sequences or {},
        "fusion": fusion or {},
    })  # fmt: skip


@pytest.mark.parametrize("arch", ["deepfm", "dlrm", "dcn", "wide_deep", "mmoe", "two_tower"])
def test_unread_history_is_refused_unless_a_feature_reads_it(arch):
    with pytest.raises(
        BadInput, match=rf"sequences\.seen: .* got model\.arch '{arch}'; .*from = \"seen\.item\""
    ) as told:
        parse(arch, sequences=LISTS)
    assert "\n" not in str(told.value)
    parse(arch, features=FEATURES | {"last": LAST}, sequences=LISTS)


@pytest.mark.parametrize("arch", ["din", "stca", "sasrec", "hstu", "bst"])
def test_network_over_histories_needs_one_with_candidates(arch):
    parse(arch, sequences=LISTS)
    with pytest.raises(BadInput, match=rf"sequences: expected a section \[sequences\.<name>\] for {arch}, got 'none'"):
        parse(arch)
    with pytest.raises(BadInput, match=r"sequences\.seen: .*; set side = \"item\" in \[features\.item\].* 'context'"):
        parse(arch, features=FEATURES | {"item": {"kind": "id", "side": "context"}}, sequences=LISTS)
    with pytest.raises(BadInput, match=r"sequences\.seen: .*; name its table in sequences\.seen\.tables"):
        parse(arch, sequences={"seen": {"columns": {"item": "items"}}})


@pytest.mark.parametrize(
    ("arch", "labels", "features", "message"),
    [
        ("esmm", "clicked", FEATURES, r"data\.label: expected two columns for esmm"),
        ("esmm", ["a", "b", "c"], FEATURES, r"data\.label: expected two columns for esmm"),
        ("mmoe", ["a", "x"], FEATURES, r"data\.label: expected a name of letters"),
        ("two_tower", "clicked", {"item": {"kind": "id", "side": "item"}}, "expected one of side 'user' for two_tower"),
        ("two_tower", "clicked", {"user": {"kind": "id", "side": "user"}}, "expected one of side 'item' for two_tower"),
        ("deepfm", "clicked", {"user": {"kind": "id", "wide": True}}, "expected one that the network reads"),
    ],
)
def test_labels_and_sides_fit_the_network(arch, labels, features, message):
    with pytest.raises(BadInput, match=message):
        parse(arch, labels, features)


def test_expression_names_what_the_network_has():
    price = FEATURES | {"price": {"kind": "float"}}
    parse("deepfm", features=price, fusion={"low": "score * 0.5", "final": "low * price"})
    parse("esmm", ["a", "b"], fusion={"final": "ctr * cvr"})
    parse("own:network", fusion={"final": "anything"})
    with pytest.raises(BadInput, match=r"fusion\.final: expected one of score, price, got 'scor'"):
        parse("deepfm", features=price, fusion={"final": "scor * price"})
    with pytest.raises(BadInput, match=r"fusion\.final: expected one of a, b, got 'score'"):
        parse("mmoe", ["a", "b"], fusion={"final": "score"})


def test_own_network_is_not_judged_by_the_file():
    parse("own:network", sequences={"seen": {"columns": {"item": "items"}}})


def test_command_refuses_before_tensorflow_is_imported(tmp_path):
    (tmp_path / "train.toml").write_text(
        '[model]\nname = "m"\narch = "mmoe"\n[data]\npath = "log.parquet"\nformat = "parquet"\nlabel = ["a", "b"]\n'
        '[features.item]\nkind = "id"\nside = "item"\n'
        '[sequences.seen]\ncolumns = { item = "items" }\ntables = { item = "item" }\n'
    )
    program = (
        "import sys\nfrom freshet_serving.serving.commands import cli\n"
        "sys.argv = ['freshet', 'train', '--config', 'train.toml']\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert end.code == 2\n"
        "assert not [name for name in sys.modules if name in ('tensorflow', 'keras')]\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stderr.startswith("freshet: sequences.seen: ")
