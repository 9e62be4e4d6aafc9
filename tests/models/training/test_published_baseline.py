"""The version as published beside the trainer: the scores of a server at step 0, whatever is learned since."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.published_baseline import PublishedBaseline
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.training.streams import FEATURES, MixedSource, make_batch, make_config, odd_batch

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_baseline_scores_like_step_0_while_training_continues(tmp_path, dtype):
    config = make_config(tmp_path, [dataclasses.replace(f, dtype=dtype if f.table else "") for f in FEATURES])
    run = TrainingRun(config, MixedSource(584))
    run.full()
    version = Repository(tmp_path).version("mixed", 1)
    frozen = PublishedBaseline(version, run.trainer.dense)
    probes = [make_batch(50, seed=0).columns, odd_batch().columns, make_batch(40, seed=8, users=600).columns]
    first = [frozen.score(columns) for columns in probes]
    if dtype == "float32":
        assert [run.trainer.score(columns).tobytes() for columns in probes] == [a.tobytes() for a in first]

    assert [str(g) for g in run.stream()][-1] == "1.4"

    assert [frozen.score(columns).tobytes() for columns in probes] == [a.tobytes() for a in first]
    assert np.abs(run.trainer.score(probes[0]) - first[0]).max() > 1e-3
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        processor.rollback("mixed", Generation(1, 0))
        for columns, wanted in zip(probes, first, strict=True):
            got = processor.process(PredictRequest("mixed", columns)).outputs["score"][:, 0]
            np.testing.assert_allclose(got, wanted, atol=1e-6)
