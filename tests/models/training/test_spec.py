from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training import spec
from freshet_serving.models.training.resolved_config import with_unsigned_ids
from freshet_serving.models.training.spec import (
    draft,
    measure_log_odds,
    measure_scaling,
    measure_transforms,
    share_of_ones,
    unsplit_texts,
)
from freshet_serving.processor.columns import Ragged, Strings, slice_column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import SOURCE
from tests.models.training.streams import FEATURES, MixedSource, make_config


class OneBatch:
    """A stream of one batch of floats."""

    def __init__(self, **columns):
        self._columns = {name: np.array(values, np.float32) for name, values in columns.items()}

    def batches(self, rows, start=0):
        n = len(next(iter(self._columns.values())))
        if n:
            yield Batch(self._columns, np.zeros(n, np.float32), None, 0)


def floats(**transforms):
    return [FeatureConfig(name, "float", transform=transform) for name, transform in transforms.items()]


def test_texts_that_look_like_lists_are_found():
    texts = {"tags": ["a|b", "c|d|e", "f"], "names": ["a", "b|c", ""], "words": ["a|b", "c|d", "e|f"]}
    features = [FeatureConfig(name, "string") for name in ("tags", "names")] + [FeatureConfig("words", "strings")]

    class Texts:
        def batches(self, rows, start=0):
            # A slice of a larger buffer, as readers give them.
            columns = {name: slice_column(Strings.of(["x|y", *values]), 1, 4) for name, values in texts.items()}
            yield Batch(columns, np.zeros(3, np.float32), None, 0)

    assert unsplit_texts(Texts(), features) == ["tags"]
    assert unsplit_texts(OneBatch(a=[1.0]), floats(a="none")) == []


def test_long_lists_of_the_first_rows_stay_within_their_memory(monkeypatch):
    read = []

    class Long:
        def batches(self, rows, start=0):
            for first in range(0, 10_000, rows):
                read.append(rows)
                values = np.arange(first, first + rows, dtype=np.float32)
                lists = Ragged(np.zeros(rows * 100, np.int64), np.arange(rows + 1) * 100)
                yield Batch({"a": values, "lists": lists}, np.zeros(rows, np.float32), None, first)

    monkeypatch.setattr(spec, "FIRST_NBYTES", 1 << 20)
    assert measure_scaling(Long(), floats(a="none"))["a"][0] == pytest.approx((sum(read) - 1) / 2)
    assert sum(read) == 1500


def test_scaling_is_mean_and_inverse_deviation_of_transformed_values():
    values = np.array([0.0, 1.0, -8.0, 100.0])
    scaling = measure_scaling(OneBatch(a=values, b=values), floats(a="none", b="log1p"))
    logs = np.sign(values) * np.log1p(np.abs(values))
    assert scaling["a"] == pytest.approx((values.mean(), 1 / values.std()), rel=1e-6)
    assert scaling["b"] == pytest.approx((logs.mean(), 1 / logs.std()), rel=1e-6)


def test_floats_of_a_sequence_are_measured_as_those_of_a_feature():
    history = SequenceConfig("h", {"item": "items"}, floats={"paid": "prices"})
    paid = FeatureConfig("h.paid", "floats", side="user", max_length=50, from_="prices", sequence=history)
    values = np.exp(np.random.default_rng(1).normal(0, 2, 400)).astype(np.float32)
    values[::9] = np.nan
    stream = OneBatch(a=values)
    stream._columns["h.paid"] = Ragged(values, np.linspace(0, len(values), len(values) + 1).astype(np.int64))
    plain = floats(a="")
    assert measure_transforms(stream, [*plain, paid]) == {"a": "log1p", "h.paid": "log1p"}
    scaling = measure_scaling(stream, [*floats(a="log1p"), replace(paid, transform="log1p")])
    assert scaling["h.paid"] == scaling["a"]


def test_scaling_ignores_nan_and_infinity():
    scaling = measure_scaling(OneBatch(a=[np.nan, 1, 3, np.inf, -np.inf, np.nan]), floats(a="none"))
    assert scaling["a"] == (2.0, 1.0)


def test_constant_or_all_nan_column_has_unit_scale():
    scaling = measure_scaling(OneBatch(a=[7, 7, 7], b=[np.nan] * 3), floats(a="none", b="log1p"))
    assert scaling == {"a": (7.0, 1.0), "b": (0.0, 1.0)}


def test_scaling_values_are_float32_for_equal_rounding_in_serving():
    for pair in measure_scaling(MixedSource(500), FEATURES).values():
        assert all(float(np.float32(v)) == v for v in pair)


def test_stream_without_floats_is_not_read():
    assert measure_scaling(None, FEATURES[:6]) == {}


def test_scaling_of_an_empty_stream_is_refused():
    with pytest.raises(BadInput, match="expected at least one row"):
        measure_scaling(OneBatch(a=[]), floats(a="none"))


def test_draft_places_the_features_next_to_each_other_in_order(tmp_path):
    manifest = draft(make_config(tmp_path), {"price": (2.0, 0.5), "age": (40.0, 0.1)})
    assert [f.name for f in manifest.features] == [f.name for f in FEATURES]
    assert [(f.offset, f.width) for f in manifest.features] == [
        (0, 4), (4, 8), (12, 4), (16, 8), (24, 4), (28, 4), (32, 1), (33, 1),
    ]  # fmt: skip
    assert manifest.width == 34
    assert [(i.name, i.dtype, i.ragged) for i in manifest.inputs] == [
        ("user", "int64", False),
        ("item", "int64", False),
        ("city", "string", False),
        ("history", "int64", True),
        ("tags", "string", True),
        ("words", "string", True),
        ("price", "float32", False),
        ("age", "float32", False),
    ]
    assert [(t.name, t.dim) for t in manifest.tables] == [("user", 4), ("item", 8), ("city", 4), ("tag", 4)]


def test_draft_contains_every_setting_of_a_feature(tmp_path):
    features = {f.name: f for f in draft(make_config(tmp_path), {"price": (2.0, 0.5)}).features}
    assert (features["history"].combiner, features["history"].max_length) == ("sqrtn", 5)
    assert (features["history"].table, features["item"].table) == ("item", "item")
    assert (features["price"].log1p, features["price"].mean, features["price"].scale) == (True, 2.0, 0.5)
    assert (features["age"].log1p, features["age"].mean, features["age"].scale) == (False, 0.0, 1.0)
    assert [features[n].side for n in ("user", "item", "city")] == ["user", "item", "context"]


def test_draft_is_a_plan_that_reads_the_stream(tmp_path):
    source = MixedSource(20)
    plan = SparsePlan(draft(make_config(tmp_path), measure_scaling(source, FEATURES)))
    assert plan.bind_inputs(next(source.batches(20)).columns).rows == 20


def test_heavy_tailed_floats_are_log_transformed():
    random = np.random.default_rng(0)
    bell = random.normal(size=2000)
    columns = {
        "price": np.exp(2.5 * bell),
        "balance": np.sinh(3 * bell) * 100,
        "bell": bell,
        "clock": 1.6e9 + 1e5 * bell,
        "flag": (random.random(2000) < 0.005).astype(float),
        "constant": np.full(2000, 7.0),
        "missing": np.full(2000, np.nan),
        "said": np.exp(2.5 * bell),
    }
    columns["balance"][:9] = np.nan
    wanted = dict.fromkeys(columns, "") | {"said": "none"}
    chosen = measure_transforms(OneBatch(**columns), floats(**wanted))
    assert "said" not in chosen
    assert [name for name, transform in chosen.items() if transform == "log1p"] == ["price", "balance"]
    assert measure_transforms(None, floats(said="none")) == {}


class Labels:
    def __init__(self, *labels):
        self._labels = np.array(labels, np.float32)

    def batches(self, rows, start=0):
        for first in range(0, max(1, len(self._labels)), rows):
            yield Batch({}, self._labels[first : first + rows], None, first)


def test_log_odds_follow_the_labels_and_stay_finite():
    assert measure_log_odds(Labels(*[1] * 100, *[0] * 300)) == [pytest.approx(np.log(1 / 3), abs=0.01)]
    assert -9 < measure_log_odds(Labels(*[0] * 1000))[0] < -7
    assert 7 < measure_log_odds(Labels(*[1] * 1000))[0] < 9
    assert measure_log_odds(Labels()) == [0.0]


def test_positive_share_is_that_of_the_first_rows():
    assert share_of_ones(Labels(*[1] * 100, *[0] * 300)) == pytest.approx(0.25, abs=0.01)
    assert 0 < share_of_ones(Labels(*[0] * 1000)) < 0.001


def unsigned_config(tmp_path, **features):
    table = pa.table(
        {
            "user": pa.array([1, 2**63], pa.uint64()),
            "item": pa.array([1, 2]),
            "seen": pa.array([[2**64 - 1], []], pa.list_(pa.uint64())),
            "y": [0, 1],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    features = {"user": {"kind": "id"}, "item": {"kind": "id"}, "seen": {"kind": "ids"}} | features
    return parse_config({"model": {"name": "m"}, "data": {"path": str(tmp_path), "label": "y"}, "features": features})


def test_unsigned_columns_of_the_data_are_declared(tmp_path):
    config = with_unsigned_ids(unsigned_config(tmp_path))
    assert {i.name: i.declared for i in draft(config, {}).inputs} == {"user": "uint64", "item": "", "seen": "uint64"}


def test_file_declares_unsigned_ids_of_other_columns(tmp_path):
    config = with_unsigned_ids(unsigned_config(tmp_path, item={"kind": "id", "unsigned": True}))
    assert draft(config, {}).input("item").declared == "uint64"


def test_derived_ids_are_never_unsigned(tmp_path):
    hour = {"kind": "id", "transform": "hour", "from": "user", "unsigned": True}
    with pytest.raises(BadInput, match=r"features.hour.unsigned: expected a feature whose ids are those of its column"):
        unsigned_config(tmp_path, hour=hour)


@pytest.mark.parametrize(("name", "padding"), [("history", 0), ("tags", "")])
def test_padding_of_a_feature_is_left_out_of_its_lists(tmp_path, name, padding):
    made = [replace(f, padding=padding) if f.name == name else f for f in FEATURES]
    manifest = draft(make_config(tmp_path, made), measure_scaling(MixedSource(20), FEATURES))
    column = next(f.input for f in manifest.features if f.name == name)
    (drop,) = (t for t in manifest.transforms if t.name == column)
    assert (drop.op, drop.inputs, drop.integers or drop.texts) == ("drop", [name], [padding])
    filled, plain = next(MixedSource(20).batches(20)).columns, dict(next(MixedSource(20).batches(20)).columns)
    values = Strings.of(["", "x", ""] * 20) if name == "tags" else np.array([0, 7, 0] * 20)
    filled[name] = Ragged(values, np.arange(0, 61, 3))
    plain[name] = Ragged(Strings.of(["x"] * 20) if name == "tags" else np.full(20, 7), np.arange(21))
    plan = SparsePlan(manifest)
    at = [f.name for f in manifest.lookups].index(name)
    one, other = (plan.bind_inputs(columns).keep[int(plan.lookups[at, SOURCE])] for columns in (filled, plain))
    assert np.array_equal(one.values, other.values)
    assert np.array_equal(one.splits, other.splits)
