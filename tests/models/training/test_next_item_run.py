"""A network of the next item is trained from an event log, published with deltas, and served."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.next_item_run import NextItemRun
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from tests.models.training.next_item_logs import ITEMS, next_config, write_log

pytestmark = pytest.mark.tensorflow


def served_scores(repository, history, times=None):
    with Processor(ProcessorConfig(str(repository))) as processor:
        processor.poll()
        inputs = {"item_id": np.arange(100, 100 + ITEMS), "history.item": Ragged.of([history])}
        if times is not None:
            inputs["history.time"] = Ragged.of([times])
        reply = processor.process(PredictRequest("next", inputs))
        return reply.outputs["score"].reshape(-1), reply.outputs["user_vector"]


@pytest.mark.parametrize("arch", NEXT_ITEM)
def test_next_item_is_learned_streamed_and_served(arch, tmp_path):
    write_log(tmp_path / "log.csv")
    run = NextItemRun(next_config(tmp_path, arch))
    summary = run.run()
    assert run.ranked.result().hit_rate == 1.0
    assert run.ranked.result().ndcg > 0.5
    assert run.ranked.targets == 72
    assert run.streamed_ranks.targets
    assert summary.generation.step == 2
    history = [100, 101, 102, 103]
    times = [1000, 2000, 3000, 4000] if arch == "hstu_next" else None
    scores, users = served_scores(tmp_path / "repository", history, times)
    assert int(scores.argmax()) == 4
    rows = dict(zip((export := run.trainer.items.export()).keys.tolist(), export.rows))
    assert np.allclose(scores, [users[0] @ rows[100 + i] for i in range(ITEMS)], atol=1e-5)
