import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.compiler.building.auc import auc
from freshet_serving.models.config.evaluate_section import EvaluateConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch, Field
from freshet_serving.models.evaluation.evaluate import evaluate, fields_of, inputs_of, user_column
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Feature, Input
from freshet_serving.processor.package.transforms import Transform
from tests.models.evaluation.conftest import ROWS
from tests.models.training.streams import Notes

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def scorer(evaluated):
    with GenerationScorer(str(evaluated.repository), "mixed") as scorer:
        yield scorer


def test_metrics_of_a_generation_follow_from_its_scores(evaluated, scorer):
    wanted, notes = EvaluateConfig(("channel", "hour", "city"), "user"), Notes()
    made = evaluate(scorer, evaluated.data, ["clicked"], wanted, notes, skip=100, rows=250)
    scores = evaluated.scores[max(evaluated.scores)][100:350]
    assert (len(made), notes.begun, notes.done) == (250, [(f"scoring by mixed {scorer.generation}", 250)], 250)
    assert made.main.scored.auc() == pytest.approx(auc(evaluated.rows.label[100:350], scores), abs=1e-3)
    slices = dict.fromkeys(name for name, _ in made.main.sliced())
    assert list(slices) == ["channel", "hour", "city"]
    by_channel = {one.value: one.metrics.rows for name, one in made.main.sliced() if name == "channel"}
    assert by_channel == {"app": 63, "web": 63, "a.b<c>": 62, "": 62}
    assert made.main.grouped().of == len(np.unique(evaluated.rows.columns["user"][100:350]))


def test_all_rows_are_scored_by_default_and_empty_input_fails(evaluated, scorer):
    assert len(evaluate(scorer, evaluated.data, ["clicked"], EvaluateConfig(), Notes())) == ROWS
    with pytest.raises(BadInput, match=r"expected more than 400 rows, got 400"):
        evaluate(scorer, evaluated.data, ["clicked"], EvaluateConfig(), Notes(), skip=ROWS)


def test_missing_column_is_refused_before_a_row_is_scored(evaluated, scorer):
    with pytest.raises(BadInput, match="evaluate: column 'nope': expected exactly one in"):
        evaluate(scorer, evaluated.data, ["clicked"], EvaluateConfig(("nope",)), Notes())
    with pytest.raises(BadInput, match=r"expected a column other than data\.label and data\.time, got 'clicked'"):
        evaluate(scorer, evaluated.data, ["clicked"], EvaluateConfig(("clicked",)), Notes())
    with pytest.raises(BadInput, match=r"evaluate\.group: expected a column with one value"):
        evaluate(scorer, evaluated.data, ["clicked"], EvaluateConfig((), "history"), Notes())


def test_input_of_an_hour_feature_is_read_as_a_time(scorer):
    steps = [("hour.0", "floor_divide", ["at"], [3600], []), ("hour", "floor_modulo", ["hour.0"], [24], [])]
    manifest = replace(
        scorer.description,
        inputs=[Input("at", "int64"), Input("item", "int64")],
        features=[Feature("hour", "id", "hour", table="hour"), Feature("item", "id", "item", table="item")],
        transforms=[Transform(*step) for step in steps],
    )
    assert fields_of(manifest) == [Field("at", "seconds"), Field("item", "id")]


def test_packed_inputs_are_read_from_their_feature_columns(scorer):
    manifest = replace(
        scorer.description,
        inputs=[Input("ids", "int64", 2), Input("price", "float32")],
        features=[
            Feature("item", "id", "ids", 1, table="item"),
            Feature("user", "id", "ids", 0, side="user", table="user"),
            Feature("price", "float", "price"),
        ],
    )
    assert fields_of(manifest) == [Field("user", "id"), Field("item", "id"), Field("price", "float")]
    assert user_column(manifest) == "user"
    price = np.ones(3, np.float32)
    columns = {"user": np.arange(3), "item": np.arange(3) + 10, "price": price}
    made = inputs_of(manifest, Batch(columns, price, None, 0))
    assert made["ids"].tolist() == [[0, 10], [1, 11], [2, 12]]
    assert made["price"] is price

    with pytest.raises(BadInput, match="input 'ids'"):
        fields_of(replace(manifest, inputs=[Input("ids", "int64", 3)]))
    assert fields_of(replace(manifest, inputs=[Input("h.paid", "float32", 0, True)])) == [Field("h.paid", "floats")]


class Fake:
    """A scorer that keeps what it was asked, and scores by the number of events."""

    model, generation = "m", "1.0"

    def __init__(self):
        self.asked = []
        inputs = [Input("user", "int64"), Input("history.item", "int64", ragged=True)]
        inputs += [Input(name, "float32", ragged=True) for name in ("history.when", "history.liked")]
        self.description = SimpleNamespace(inputs=inputs, features=[], transforms=[])

    def outputs(self, labels):
        return ["score"]

    def score(self, inputs, rows, outputs):
        self.asked.append(inputs)
        return np.diff(inputs["history.item"].row_splits).astype(np.float32)


def test_histories_are_made_of_events_before_the_skipped_rows_too(tmp_path):
    path = tmp_path / "events.parquet"
    columns = {"ts": [1, 2, 3, 4], "user": [5, 5, 5, 6], "item": [10, 11, 12, 13], "clicked": [1.0, 1.0, 0.0, 1.0]}
    columns["item_day"] = [0.5, 1.5, 2.5, 3.5]
    pq.write_table(pa.table(columns), path)
    data = {"path": str(path), "label": "clicked", "time": "ts"}
    features = {"user": {"kind": "id", "side": "user"}, "item": {"kind": "id", "side": "item"}}
    history = {"columns": {"item": "item"}, "tables": {"item": "item"}, "from_events": "user"}
    history["floats"] = {"when": "item_day", "liked": "clicked"}
    config = parse_config(
        {"model": {"name": "m", "arch": "din"}, "data": data, "features": features, "sequences": {"history": history}}
    )
    scorer = Fake()
    evaluate(scorer, config.data, ["clicked"], EvaluateConfig(), Notes(), skip=2, trained=config)
    (asked,) = scorer.asked
    assert asked["history.item"].values.tolist() == [10, 11]
    assert asked["history.item"].row_splits.tolist() == [0, 2, 2]
    assert asked["history.when"].values.tolist() == [0.5, 1.5]
    assert asked["history.liked"].values.tolist() == [1.0, 1.0]
