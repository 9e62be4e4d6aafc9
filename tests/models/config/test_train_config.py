import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.model_section import ModelConfig, NetworkConfig
from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.config.train_config import load_config, parse_config
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.training.fingerprint import fingerprint
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.errors import BadInput

COMPLETE = """
[model]
name = "ctr"
arch = "dlrm"
hidden = [256, 64]
[data]
path = "clicks.parquet"
label = "clicked"
time = "ts"
[features.user_id]
kind = "id"
table = "user"
dim = 32
side = "user"
[features.friends]
kind = "ids"
table = "user"
dim = 32
combiner = "mean"
max_length = 20
[features.price]
kind = "float"
side = "item"
transform = "log1p"
[train]
batch_rows = 256
epochs = 2
optimizer = "adam"
learning_rate = 1
dense_learning_rate = 0.01
holdout = 0.2
seed = 7
[publish]
repository = "models"
full_rows = 80000
delta_rows = 2000
delta_seconds = 1.5
"""


def config(**changes):
    """A small valid file as tomllib gives it, with keys replaced: section__key=value; None takes one away."""
    raw = {
        "model": {"name": "ctr"},
        "data": {"path": "clicks.csv", "label": "clicked"},
        "features": {"user": {"kind": "id"}},
        "train": {},
        "publish": {},
    }
    for where, value in changes.items():
        *sections, key = where.split("__")
        at = raw
        for section in sections:
            at = at.setdefault(section, {})
        if value is None:
            del at[key]
        else:
            at[key] = value
    return raw


def test_complete_file_is_parsed(tmp_path):
    (tmp_path / "train.toml").write_text(COMPLETE)
    read = load_config(tmp_path / "train.toml")

    assert read.model == ModelConfig("ctr", "dlrm", options={"hidden": (256, 64)})
    assert read.data == DataConfig("clicks.parquet", "parquet", "clicked", "ts")
    assert read.features == [
        FeatureConfig("user_id", "id", "user", 32, "user"),
        FeatureConfig("friends", "ids", "user", 32, "context", "mean", 20),
        FeatureConfig("price", "float", side="item", transform="log1p"),
    ]
    assert read.train == TrainSettings(
        batch_rows=256, epochs=2, optimizer="adam", learning_rate=1.0, dense_learning_rate=0.01, holdout=0.2, seed=7
    )
    assert read.publish == PublishConfig("models", 80000, 2000, 1.5)


def test_omitted_keys_have_defaults():
    read = parse_config(config(train=None, publish=None))

    assert read.model.arch == "deepfm"
    assert read.features == [FeatureConfig("user", "id", "user", 16)]
    assert read.train == TrainSettings()
    assert read.publish == PublishConfig()
    assert read.data.format == "csv"


def test_publish_table_dtype_can_be_overridden_per_feature():
    raw = config(publish__table_dtype="int8", features__user__dtype="bfloat16", features__item={"kind": "id"})
    read = parse_config(raw)
    assert read.publish.table_dtype == "int8"
    assert [f.dtype for f in read.features] == ["bfloat16", ""]
    assert [t.dtype for t in draft(read, {}).tables] == ["bfloat16", "int8"]


def test_fusion_expressions_are_kept_in_file_order():
    raw = config(fusion={"base": "score ** 0.5", "final": "base * price"}, features__price={"kind": "float"})
    read = parse_config(raw)

    assert list(read.fusion.items()) == [("base", "score ** 0.5"), ("final", "base * price")]
    assert draft(read, {}).notes == {"fusion": {"base": "score ** 0.5", "final": "base * price"}}
    assert parse_config(config()).fusion == {}


def test_architecture_may_be_a_user_function():
    assert parse_config(config(model__arch="my_models.wide:build")).model.arch == "my_models.wide:build"


def test_movielens_and_criteo_need_no_features(tmp_path):
    read = parse_config(config(features=None, data__format="movielens", data__label=None))
    genres = next(f for f in read.features if f.name == "genres")

    assert (genres.kind, genres.side, genres.combiner, genres.table) == ("strings", "item", "mean", "genres")
    (tmp_path / "train.txt").write_text("\t".join(["1"] * 40) + "\n")
    raw = config(features=None, data__format="criteo", data__label=None, data__path=str(tmp_path / "train.txt"))
    read = parse_config(raw)
    assert len(read.features) == 39
    assert read.features[0] == FeatureConfig("I1", "float", transform="log1p")
    assert read.features[-1] == FeatureConfig("C26", "string", "C26", 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": {}}, r"modle: unknown section; expected one of model, data, .* \(did you mean 'model'\?\)"),
        ({"fusion__final": 3}, r"fusion\.final: expected an expression in quotes, got an integer"),
        ({"fusion__final": "score *"}, r"fusion\.final: expected a number, a name or '\(' at the end"),
        ({"model": 3}, r"model: expected a section \[model\], got an integer"),
        ({"data": None}, r"data: expected a section \[data\], got none"),
        ({"train__batch_row": 1}, r"train\.batch_row: unknown key; expected one of .* \(did you mean 'batch_rows'\?\)"),
        ({"publish__precision": "int4"}, r"publish\.precision: expected one of float32, int8, auto, got 'int4'"),
        ({"publish__max_error": 2.0}, r"publish\.max_error: expected .*, got 2"),
        ({"publish__table_dtype": "int4"}, r"publish\.table_dtype: expected one of float32, .*, int8, got 'int4'"),
        ({"features__user__dtype": ""}, r"features\.user\.dtype: expected one of float32, .*, int8, got ''"),
        (
            {"features__price": {"kind": "float", "dtype": "int8"}},
            r"features\.price\.dtype: only for kind id, .*; this one is 'float'",
        ),
        (
            {"features__friends": {"kind": "ids", "table": "user", "dtype": "int8"}},
            r"features\.friends\.dtype: expected none, as features\.user has for table 'user', got int8",
        ),
        ({"train__zzz": 1}, r"train\.zzz: unknown key; expected one of initial_accumulator, .*, seed$"),
        (
            {"features__user__knd": "id"},
            r"features\.user\.knd: unknown key; expected one of kind, table, .*\(did you mean 'kind'\?\)",
        ),
        ({"features__user__name": "x"}, r"features\.user\.name: not a key; the section is named as the column"),
        ({"features__user": 1}, r"features\.user: expected a section \[features\.user\], got an integer"),
        ({"features__user__kind": None}, r"features\.user\.kind: expected a string, got nothing"),
        ({"model__name": None}, r"model\.name: expected a string, got nothing"),
        ({"model__name": "a/b"}, r"model\.name: expected letters, digits.*, got 'a/b'"),
        ({"model__name": 5}, r"model\.name: expected a string, got an integer"),
        (
            {"model__arch": "depfm"},
            r"model\.arch: expected one of deepfm, dlrm, .* or .* got 'depfm' \(did you mean 'deepfm'\?\)",
        ),
        ({"model__arch": "os.system:"}, r"model\.arch: expected one of"),
        ({"model__hidden": 64}, r"model\.hidden: expected a list of integers, got an integer"),
        ({"model__hidden": [64, "a"]}, r"model\.hidden\[1\]: expected an integer, got a string"),
        ({"model__hidden": [0]}, r"model\.hidden\[0\]: expected 1 to 65536, got 0"),
        ({"data__path": ""}, r"data\.path: expected a file, folder or glob"),
        ({"data__format": "parket"}, r"data\.format: expected one of .* got 'parket' \(did you mean 'parquet'\?\)"),
        ({"data__path": "x.bin"}, r"data\.path: 'x\.bin' does not exist"),
        ({"data__label": None}, r"data\.label: expected the name of the label column, got nothing"),
        (
            {"data__format": "criteo"},
            r"data\.label: allowed only for parquet, csv and tfrecord; format criteo has its own",
        ),
        (
            {"data__format": "movielens", "data__label": ["rated4", "rated6"]},
            r"data\.label: expected one of rated1, .*, rated5, got 'rated6' \(did you mean 'rated5'\?\)",
        ),
        ({"data__label": ["a", "a"], "model__arch": "mmoe"}, r"data\.label: expected different columns, got 'a, a'"),
        ({"data__label": []}, r"data\.label: expected the name of the label column, got nothing"),
        ({"data__label": ["a", 1]}, r"data\.label\[1\]: expected a string, got an integer"),
        ({"data__label": ["a", "b"]}, r"model\.arch: expected mmoe, esmm for several labels, got 'deepfm'"),
        (
            {"model__arch": "dcn", "model__cros_layers": 2},
            r"unknown key; expected one of name, .* \(did you mean 'cross_layers'\?\)",
        ),
        ({"model__arch": "dcn", "model__cross_layers": 0}, r"model\.cross_layers: expected 1 to 16, got 0"),
        ({"model__arch": "dcn", "model__cross_layers": 2.5}, r"model\.cross_layers: expected an integer, got a number"),
        (
            {"model__arch": "dcn", "model__structure": "stack"},
            r"model\.structure: expected one of parallel, stacked, got 'stack' \(did you mean 'stacked'\?\)",
        ),
        (
            {"model__arch": "dcn", "model__structure": 1},
            r"structure: expected one of parallel, stacked, got an integer",
        ),
        ({"model__dropout": 1}, r"model\.dropout: expected 0 to 0\.95, got 1\.0"),
        (
            {"model__seed": 1},
            r"model\.seed: unknown key; expected one of name, arch, loss, label_weights, hidden, dropout",
        ),
        ({"model__loss": "hinge"}, r"model\.loss: expected 'log_loss' or 'package\.module:function', or nothing"),
        ({"model__label_weights": [1, 2]}, r"model\.label_weights: expected 1, one for each of data\.label, got 2"),
        ({"model__label_weights": [0]}, r"model\.label_weights\[0\]: expected a number above 0, got 0\.0"),
        (
            {"model__label_weights": [1], "model__loss": "a:b"},
            r"model\.label_weights: allowed only without model\.loss",
        ),
        ({"data__time": "clicked"}, r"data\.time: expected a column other than data\.label, got 'clicked'"),
        ({"features": {}}, r"features: expected at least one section \[features\.<column>\], got none"),
        ({"features__clicked": {"kind": "float"}}, r"features\.clicked: expected a column other than data\.label"),
        ({"features__my col": {"kind": "id"}}, r"features\.my col: expected a column named by letters.* got 'my col'"),
        (
            {"features__user__kind": "ID"},
            r"features\.user\.kind: expected one of id, string, float, ids, strings, got 'ID'",
        ),
        ({"features__user__side": "usr"}, r"features\.user\.side: .*\(did you mean 'user'\?\)"),
        ({"features__user__dim": 0}, r"features\.user\.dim: expected 1 to 4096, got 0"),
        ({"features__user__dim": 1.5}, r"features\.user\.dim: expected an integer, got a number"),
        ({"features__user__dim": True}, r"features\.user\.dim: expected an integer, got true or false"),
        ({"features__user__table": ""}, r"features\.user\.table: expected letters, digits"),
        ({"features__user__transform": "log1p"}, r"features\.user\.transform: only for kind float; this one is 'id'"),
        (
            {"features__user__combiner": "sum"},
            r"features\.user\.combiner: only for kind ids, strings; this one is 'id'",
        ),
        ({"features__x": {"kind": "float", "dim": 4}}, r"features\.x\.dim: only for kind id, string, ids, strings"),
        (
            {"features__x": {"kind": "ids", "combiner": "none"}},
            r"features\.x\.max_length: expected 1 or more for combiner none, got '0'",
        ),
        (
            {"features__x": {"kind": "ids", "combiner": "avg"}},
            r"features\.x\.combiner: expected one of sum, mean, sqrtn, none",
        ),
        ({"features__x": {"kind": "ids", "max_length": -1}}, r"features\.x\.max_length: expected 0 to"),
        ({"train__batch_rows": 0}, r"train\.batch_rows: expected 1 to 1048576, got 0"),
        ({"train__epochs": 0}, r"train\.epochs: expected 1 to"),
        ({"train__optimizer": "sgb"}, r"train\.optimizer: expected one of adagrad, .*, sgd, got 'sgb'"),
        (
            {"train__optimizer": "sgd"},
            r"train\.learning_rate: required with sgd, which has no default that suits every table",
        ),
        ({"train__l1": -1.0}, r"train\.l1: expected 0 to 1000000\.0, got -1\.0"),
        ({"train__beta": float("nan")}, r"train\.beta: expected 0 to"),
        ({"train__accumulator_decay": 1.5}, r"train\.accumulator_decay: expected 0 to 1"),
        ({"train__decay_steps": 0}, r"train\.decay_steps: expected 1 to"),
        (
            {"train__optimizer": "sgd", "train__l2": 0.1, "train__learning_rate": 0.1},
            r"train\.l2: only for ftrl; the optimizer is 'sgd'",
        ),
        ({"train__optimizer": "adam", "train__weight_decay": 0.1}, r"train\.weight_decay: only for adamw; .* 'adam'"),
        ({"train__learning_rate": 10**400}, r"train\.learning_rate: expected a number of 64 bits, got a larger one"),
        ({"train__learning_rate": 0}, r"train\.learning_rate: expected a number above 0, got 0\.0"),
        (
            {"train__dense_learning_rate": float("nan")},
            r"train\.dense_learning_rate: expected a number above 0, got nan",
        ),
        ({"train__holdout": 1.0}, r"train\.holdout: expected 0 to 0\.9, got 1\.0"),
        ({"train__seed": -1}, r"train\.seed: expected 0 to"),
        ({"publish__repository": ""}, r"publish\.repository: expected a folder"),
        (
            {"publish__repository": "ftp://x"},
            r"publish\.repository: expected a folder, or s3://BUCKET, .* got scheme 'ftp'",
        ),
        ({"publish__trainer_folder": "s3://a/b"}, r"publish\.trainer_folder: expected a folder of this machine's disk"),
        ({"publish__keep_versions": 1}, r"publish\.keep_versions: expected 0, or 2 or more, got '1'"),
        ({"publish__full_rows": -1}, r"publish\.full_rows: expected 0 to"),
        (
            {"publish__delta_rows": 10},
            r"publish\.delta_rows: expected 0 while publish\.full_rows is 0 \(all rows\), got 10",
        ),
        ({"publish__delta_seconds": -1.0}, r"publish\.delta_seconds: expected 0 or more, got -1\.0"),
        ({"publish__dense_every": -1}, r"publish\.dense_every: expected 0 to \d+, got -1"),
        ({"publish__dense_every": "60s"}, r"publish\.dense_every: expected an integer, got"),
        ({"publish__dense_every": 2.5}, r"publish\.dense_every: expected an integer, got a number"),
        ({"publish__dense_every": 6}, r"publish\.dense_every: only with one of delta_rows, .*, got 6"),
    ],
)
def test_mistake_gives_a_one_line_error(changes, message):
    with pytest.raises(BadInput, match=message) as caught:
        parse_config(config(**changes))

    assert "\n" not in str(caught.value)


def test_features_that_share_a_table_must_agree():
    with pytest.raises(BadInput, match=r"features\.b\.dim: expected 16, as features\.user has in table 'user', got 8"):
        parse_config(config(features__b={"kind": "ids", "table": "user", "dim": 8}))
    with pytest.raises(
        BadInput, match=r"features\.b\.kind: expected id or ids, as features\.user shares table 'user', got 'strings'"
    ):
        parse_config(config(features__b={"kind": "strings", "table": "user"}))
    shared = parse_config(config(features__b={"kind": "ids", "table": "user"}))
    assert [f.table for f in shared.features] == ["user", "user"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[model\n", r"bad\.toml: not valid TOML: .*line 1"),
        (b"\xff\xfe", r"bad\.toml: expected a TOML file, got bytes that are not UTF-8"),
        (b"#" * (4 << 20) + b"##", r"bad\.toml: expected at most 4194304 bytes"),
    ],
)
def test_file_that_is_not_toml_is_refused(tmp_path, text, message):
    (tmp_path / "bad.toml").write_bytes(text)
    with pytest.raises(BadInput, match=message):
        load_config(tmp_path / "bad.toml")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"gone\.toml: cannot read the file: No such file"):
        load_config(str(tmp_path / "gone.toml"))


def test_reading_a_configuration_imports_nothing_heavy(tmp_path):
    code = (
        "import sys, freshet_serving.models.config.train_config\n"
        "assert not {'pyarrow', 'tensorflow', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_documented_training_files_are_valid(tmp_path, monkeypatch):
    (tmp_path / "train.txt").write_text("\t".join(["1"] * 40) + "\n")
    docs = Path(__file__).parents[3] / "docs"
    text = (docs / "how-to" / "train.md").read_text() + (docs / "reference" / "data.md").read_text()
    monkeypatch.chdir(tmp_path)
    shown = [parse_config(tomllib.loads(block)) for block in re.findall(r"```toml\n(.*?)```", text, re.S)]

    assert [c.model.name for c in shown] == ["ctr", "hours", "movies", "ads"]
    assert [len(c.features) for c in shown] == [4, 7, 8, 39]
    assert shown[0].train == TrainSettings(epochs=1)


def test_zoo_training_file_is_valid():
    text = (Path(__file__).parents[3] / "docs" / "reference" / "architectures.md").read_text()
    (shown,) = (parse_config(tomllib.loads(block)) for block in re.findall(r"```toml\n(.*?)```", text, re.S))

    assert shown.network == NetworkConfig({}, ("clicked", "shared"))
    assert shown.fusion == {"score": "clicked ** 1.0 * shared ** 0.3"}


def overridden(tmp_path, *overrides):
    (tmp_path / "train.toml").write_text(COMPLETE)
    return load_config(tmp_path / "train.toml", overrides)


def test_any_key_of_the_file_can_be_overridden(tmp_path):
    read = overridden(
        tmp_path,
        "train.seed=1",
        "train.seed=2",
        "train.initial_accumulator = 1e-6",
        'train.optimizer="ftrl"',
        "model.hidden=[8, 4]",
        "features.price.transform='none'",
        'fusion.final="score * 2"',
    )
    assert (read.train.seed, read.train.optimizer, read.train.initial_accumulator) == (2, "ftrl", 1e-6)
    assert read.model.options == {"hidden": (8, 4)}
    assert read.features[2].transform == "none"
    assert read.fusion == {"final": "score * 2"}
    assert read.train.batch_rows == 256


def test_override_changes_the_fingerprint_like_the_file(tmp_path):
    assert fingerprint(overridden(tmp_path, "train.seed=1")) != fingerprint(overridden(tmp_path))
    assert fingerprint(overridden(tmp_path, "train.seed=7")) == fingerprint(overridden(tmp_path))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.sed=1", r"train\.sed: unknown key; expected one of initial_accumulator, .* \(did you mean 'seed'\?\)"),
        ("trian.seed=1", r"trian: unknown section; expected one of model, data, .* \(did you mean 'train'\?\)"),
        ("features.user.dim=8", r"--set features\.user\.dim: expected a feature of the file: user_id, friends, price"),
        ("features.dim=8", r"--set features\.dim: expected a feature of the file"),
        ("features.price.nope=8", r"features\.price\.nope: unknown key; expected one of kind, "),
        ("train.optimizer=adam", r"""a string in quotes \('train\.optimizer="adam"'\), got 'adam'"""),
        ("train.seed=1\nepochs=2", r"--set train\.seed: expected a TOML value"),
        ("train.seed=", r"--set train\.seed: expected a TOML value"),
        ("train.a.seed=1", r"--set: expected section\.key=value, got 'train\.a\.seed=1'"),
        ("seed=1", r"--set: expected section\.key=value, got 'seed=1'"),
        ("train.seed", r"--set: expected section\.key=value, got 'train\.seed'"),
        ("", r"--set: expected section\.key=value, got ''"),
        ("train.seed=-1", r"train\.seed: expected 0 to"),
        ("train.initial_accumulator=1.0", r"train\.initial_accumulator: only for adagrad, .*, ftrl; .* 'adam'"),
    ],
)
def test_invalid_override_gives_a_one_line_error(tmp_path, override, message):
    with pytest.raises(BadInput, match=message) as caught:
        overridden(tmp_path, override)
    assert "\n" not in str(caught.value)


def test_override_of_a_feature_needs_features_in_the_file(tmp_path):
    (tmp_path / "train.toml").write_text('[model]\nname = "m"\n[data]\npath = "ml-1m"\nformat = "movielens"\n')
    with pytest.raises(BadInput, match=r"expected a feature of the file: none, as the file has no \[features\]"):
        load_config(tmp_path / "train.toml", ["features.user_id.dim=8"])


def test_addresses_of_stores_come_from_the_file_or_the_command(tmp_path):
    addresses = {"main": "redis://a", "other": "redis+cluster://b:1,c"}
    stores = overridden(tmp_path, *(f'online_stores.{name}="{url}"' for name, url in addresses.items())).online_stores
    assert {name: one.url for name, one in stores.items()} == addresses
    section = '[online_stores.main]\nurl = "redis://file"\nusername = "freshet"\n'
    (tmp_path / "train.toml").write_text(COMPLETE + section)
    assert load_config(tmp_path / "train.toml").online_stores["main"].url == "redis://file"
    main = load_config(tmp_path / "train.toml", ['online_stores.main="redis://here"']).online_stores["main"]
    assert (main.url, main.username) == ("redis://here", "freshet")
    with pytest.raises(BadInput, match=r"online_stores\.main\.url: expected no user or password in the address"):
        overridden(tmp_path, 'online_stores.main="redis://:secret@a"')
