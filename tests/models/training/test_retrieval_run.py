"""Two towers are trained to retrieve, published with deltas and followed, and a killed run continues to the bit."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.models.config.train_config import StartOptions
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.retrieval_evaluation import rank_pairs
from freshet_serving.models.training import loop
from freshet_serving.models.training.retrieval_run import RetrievalRun
from freshet_serving.models.training.retrieval_trainer import RetrievalTrainer
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import Refused
from freshet_serving.processor.repository import open_repository
from tests.models.training.retrieval_logs import GROUPS, ITEMS, pairs_config, write_log
from tests.models.training.streams import Notes

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]


def weights_of(trainer):
    tables = {name: table.export() for name, table in trainer.tables.items()}
    arrays = {f"{name}.{part}": getattr(e, part) for name, e in tables.items() for part in ("keys", "rows", "counts")}
    return arrays | trainer.dense.weights() | trainer.saved(whole=True)


def same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_towers_retrieve_what_users_choose_and_are_served_as_trained(tmp_path):
    write_log(tmp_path / "log.csv")
    notes = Notes()
    run = RetrievalRun(pairs_config(tmp_path, train={"epochs": 20}), reporter=notes)
    summary = run.run()
    assert str(summary.generation) == "1.4"
    # By chance 10 of 60 items are among the first 10.
    figures = run.ranked.figures()
    assert figures["recall@10"] > 0.3
    assert run.status().held_out == figures
    assert any(line.startswith("held out: recall@10 0.") and "recall@100" in line for line in notes.notes)
    assert any(line.startswith("streamed, before training on them: recall@10") for line in notes.notes)
    assert "recall@100" in summary.report.read_text()
    items = np.arange(100, 100 + ITEMS)
    columns = {
        "user_id": Strings.of(["u1"] * ITEMS),
        "item_id": items,
        "kind": Strings.of([f"k{n % 3}" for n in range(ITEMS)]),
    }
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"), sessions=1)) as processor:
        outputs = processor.process(PredictRequest("pairs", columns)).outputs
    np.testing.assert_allclose(outputs["score"][:, 0], run.trainer.score(columns), atol=1e-5)
    products = (outputs["user_vector"] * outputs["item_vector"]).sum(1)
    # The smallest of them are 0 in float32.
    assert (np.diff(outputs["score"][np.argsort(products), 0]) >= 0).all()
    best = np.argsort(-products)[:5]
    assert np.mean(best % GROUPS == 1) > 0.5


def test_generation_ranks_as_the_run_does(tmp_path):
    write_log(tmp_path / "log.csv")
    config = pairs_config(tmp_path, train={"holdout": 0.0, "epochs": 15}, publish={"delta_rows": 0})
    run = RetrievalRun(config)
    run.full()
    with GenerationScorer(str(tmp_path / "repository"), "pairs") as scorer:
        ranking = rank_pairs(scorer, config.data, config, 10, SilentReporter(), 800, 0)
    expected = run.ranked
    with run._works(800, 1200) as works:
        for work in works:
            run._ranks.rank(work, expected)
    assert ranking.targets == expected.targets > 200
    # By other users' vectors it is that of chance, 10 of 60.
    assert ranking.figures()["recall@10"] > 0.4
    # The data have items that no row of the full version had.
    assert ranking.items >= expected.items
    for name, figure in ranking.figures().items():
        assert figure == pytest.approx(expected.figures()[name], abs=0.02)


class Killed(Exception):
    """Raised in place of a step."""


@pytest.mark.parametrize("steps", [5, pytest.param(14, marks=pytest.mark.long)], ids=["epoch", "stream"])
def test_killed_run_continues_to_the_bit(steps, tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    short = {"train": {"epochs": 1}, "model": {"negatives": 8, "dropout": 0.1}}

    def start(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return RetrievalRun(pairs_config(tmp_path, **short), checkpoints=tmp_path / name)

    whole = start("whole")
    whole.run()
    shutil.rmtree(tmp_path / "repository")
    killed, taken = start("killed"), []
    learn = killed.trainer.learn

    def learn_until_killed(work):
        if len(taken) == steps:
            raise Killed
        taken.append(work)
        return learn(work)

    monkeypatch.setattr(killed.trainer, "learn", learn_until_killed)
    with pytest.raises(Killed):
        killed.run()
    resumed = start("killed")
    resumed.run()
    same(weights_of(resumed.trainer), weights_of(whole.trainer))


def test_early_stopping_keeps_the_epoch_of_the_best_ndcg(tmp_path):
    write_log(tmp_path / "log.csv")
    notes = Notes()
    config = pairs_config(tmp_path, train={"epochs": 4, "patience": 1}, publish={"delta_rows": 0})
    run = RetrievalRun(config, reporter=notes)
    run.full()
    lines = [line for line in notes.notes if line.startswith("epoch ")]
    assert all("NDCG@10" in line for line in lines)
    assert len(run.state.epoch_scores) == len(lines) >= 2


def test_next_version_is_judged_by_ranks_and_one_that_lost_its_order_refused(tmp_path):
    write_log(tmp_path / "log.csv", rows=2000)
    publish = {"delta_rows": 0, "full_rows": 2000}
    config = pairs_config(tmp_path, train={"epochs": 5}, publish=publish)
    RetrievalRun(config).run()
    RetrievalRun(config, start_options=StartOptions(new_version=True)).run()
    first, second = (open_repository(str(tmp_path / "repository")).version("pairs", n) for n in (1, 2))
    assert "held-out NDCG" in json.dumps(first.manifest.notes["gate"]["figures"])
    notes = second.manifest.notes["gate"]
    assert notes["verdict"] == "passed"
    assert "ndcg" in notes["moves"]
    assert "auc" not in notes["moves"]
    worse = pairs_config(tmp_path, train={"epochs": 1, "learning_rate": 1e-6}, publish=publish)
    with pytest.raises(Refused, match="NDCG"):
        RetrievalRun(worse, start_options=StartOptions(new_version=True, from_scratch=True)).run()


def test_checkpoint_without_items_finds_the_newest(tmp_path, monkeypatch):
    write_log(tmp_path / "log.csv")
    config = pairs_config(tmp_path, publish={"delta_rows": 0, "gate": {"mode": "off"}})
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalTrainer, "saved", lambda self, whole: {})
        RetrievalRun(config).full()
    again = RetrievalRun(config)
    assert again.state.position == 800
    assert len(again.trainer.recent) > ITEMS // 2


def test_followed_run_publishes_what_arrives_and_goes_on_from_its_checkpoint(tmp_path):
    (tmp_path / "log").mkdir()
    write_log(tmp_path / "rows.csv", rows=1000)
    rows = csv.read_csv(tmp_path / "rows.csv")
    rows = rows.set_column(3, "label", rows["label"].cast("float32"))
    config = pairs_config(
        tmp_path, data={"path": str(tmp_path / "log"), "format": "parquet", "follow": True}, publish={"full_rows": 600}
    )

    def followed(name, some):
        pq.write_table(some, tmp_path / "log" / f"{name}.parquet")
        run = RetrievalRun(config)
        run.full()
        run.stop()
        return run, [str(generation) for generation in run.stream()]

    first, published = followed("0", rows.slice(0, 700))
    second, more = followed("1", rows.slice(700))
    assert published
    assert more
    assert second.state.position > first.state.position >= 600
    assert second.trainer.recent.events > first.trainer.recent.events
    assert second.streamed_ranks.targets > 0
