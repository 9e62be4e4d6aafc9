import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.models.config.model_section import ModelConfig
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.item_vectors import item_inputs, write_vectors
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.manifest_entries import Feature
from freshet_serving.processor.package.transforms import Transform
from tests.models.training.streams import FEATURES, MixedSource, make_batch, make_config, spread

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

ITEMS = 3000


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A two-tower model with a delta, a table of more items than a request takes, and what is computed of them."""
    folder = tmp_path_factory.mktemp("towers")
    config = dataclasses.replace(
        make_config(folder / "repository", full_rows=128, delta_rows=64),
        model=ModelConfig("mixed", "two_tower", options={"hidden": (8,), "vector_dim": 4}),
    )
    run = TrainingRun(config, MixedSource(192))
    run.full()
    assert [str(g) for g in run.stream()] == ["1.1"]
    batch = make_batch(ITEMS, seed=11)
    ids = spread(np.arange(ITEMS))
    ids[2500:] = ids[:500]
    tags = batch.columns["tags"]
    texts = [t.decode() for t in tags.values.tolist()]
    rows = [texts[a:b] for a, b in zip(tags.row_splits[:-1], tags.row_splits[1:])]
    pq.write_table(pa.table({"item": ids, "tags": rows, "unused": np.zeros(ITEMS)}), folder / "items.parquet")
    columns = batch.columns | {"item": ids}
    return folder, columns


def written(story, output="item_vector", id_name="", generation=None, items="items.parquet"):
    folder, _ = story
    with GenerationScorer(str(folder / "repository"), "mixed", generation) as scorer:
        data = DataConfig(str(folder / items), "parquet", ())
        count = write_vectors(scorer, data, output, id_name, folder / "vectors.parquet", SilentReporter())
    table = pq.read_table(folder / "vectors.parquet")
    assert table.num_rows == count
    return table


def test_every_item_has_the_vector_that_a_server_returns(story):
    folder, columns = story
    table = written(story)

    assert table.schema.names == ["item", "vector"]
    assert table.schema.types == [pa.int64(), pa.list_(pa.float32())]
    assert table["item"].to_pylist() == columns["item"][:2500].tolist()
    with Processor.initialize(ProcessorConfig(str(folder / "repository"), sessions=1)) as processor:
        wanted = processor.process(PredictRequest("mixed", columns)).outputs["item_vector"]
    got = np.array(table["vector"].to_pylist(), np.float32)
    np.testing.assert_allclose(got, wanted[:2500], atol=1e-5)


def test_any_generation_can_be_exported(story):
    newest, first = (np.array(written(story, generation=g)["vector"].to_pylist()) for g in (None, Generation(1, 0)))
    assert np.abs(newest - first).max() > 1e-4
    again = written(story, generation=Generation(1, 1))
    np.testing.assert_array_equal(np.array(again["vector"].to_pylist()), newest)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "item_vektor"}, r"output: expected one of item_vector, .*, .* \(did you mean 'item_vector'\?\)"),
        ({"id_name": "user"}, r"id: expected the column that identifies items \(item\), got user"),
        ({"items": "none.parquet"}, r"data\.path: '.*none\.parquet' does not exist"),
        ({"generation": Generation(1, 9)}, r"generation 1\.9 of model 'mixed' is not in the repository"),
    ],
)
def test_missing_model_or_generation_gives_a_one_line_error(story, options, message):
    with pytest.raises(FreshetError, match=message):
        written(story, **options)


def test_item_inputs_are_the_inputs_of_item_features():
    manifest = draft(make_config("r", FEATURES), {})
    assert [spec.name for spec in item_inputs(manifest)] == ["item", "tags"]
    hashed = Feature("late", "ids", "bucket", side="item", table="tag", offset=manifest.width, width=4)
    transform = Transform("bucket", "sip", ["text"], integers=[9, 1, 2]), Transform("text", "lower", ["city"])
    changed = dataclasses.replace(
        manifest, features=[*manifest.features, hashed], transforms=[transform[1], transform[0]]
    )
    assert [spec.name for spec in item_inputs(changed)] == ["item", "city", "tags"]
    with pytest.raises(BadInput, match=r"model: 'mixed' has no features of side 'item'"):
        item_inputs(dataclasses.replace(manifest, features=manifest.features[:1]))
