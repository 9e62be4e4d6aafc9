"""Counts, newest events and crosses of histories over the network: every dialect gives what training and numpy compute.

With rows in float32 and in int8, after each delta, and after going back to an earlier one.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.training.lineage import rebuild
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import ChangeLog, VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.dialects import DIALECTS, lists, tensorflow_columns
from tests.e2e.servers import ALONE, LiveServer
from tests.models.training.test_parity_histories import LENGTHS, ROWS, Lists, by_hand, config_of, events
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

MODEL = "shop"
CANDIDATES = np.array([3, 17, 39], np.int64)
OPTIONS = (*ALONE, "--delta-guard", "off")
"""A run of a few steps moves scores further than a guard would serve."""


def serves(live, generation):
    return live.generation(MODEL) == generation


@pytest.fixture(scope="module", params=["float32", "int8"])
def story(request, tmp_path_factory):
    """A run with three deltas, and its trainer as it is in each generation's files."""
    folder = tmp_path_factory.mktemp(request.param)
    config = config_of(folder / "repository", full_rows=ROWS // 4, delta_rows=ROWS // 4, table_dtype=request.param)
    run = TrainingRun(config, SequenceSource(Lists(), config.features))
    run.full()
    list(run.stream())
    version = Repository(folder / "repository").version(MODEL, 1)
    log = ChangeLog.of(version)
    packaged = Trainer(run.trainer.manifest, config.train, config.network, tables=config.tables)

    def trainer_of(step):
        rebuild(packaged, VersionContents(version, log, log.history.known(step)))
        return packaged

    return SimpleNamespace(run=run, folder=folder, version=version, trainer_of=trainer_of, dtype=request.param)


@pytest.fixture(scope="module")
def live(story):
    with LiveServer(story.folder / "repository", *OPTIONS, log=story.folder / "serve.log") as server:
        until(partial(serves, server, "1.3"))
        yield server


def user(length):
    """The columns of one user with so many events, beside the candidates, and the items of the events."""
    history, items, actions, times = events(np.random.default_rng(length), [length])
    columns = {"history.item": items, "history.action": actions, "history.time": times, "item": CANDIDATES}
    return columns, history[0]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_dialect_gives_the_trained_scores(length, story, live):
    columns, history = user(length)
    trainer = story.trainer_of(3)
    hands = SimpleNamespace(trainer=trainer)
    pooled = np.stack([by_hand(hands, history, item) for item in CANDIDATES.tolist()])
    np.testing.assert_allclose(trainer.dense_inputs(columns)["x"], pooled, atol=1e-5)
    expected = trainer.score(columns)
    if story.dtype == "float32":
        np.testing.assert_allclose(story.run.trainer.score(columns), expected, atol=1e-6)
    for name, ask in DIALECTS.items():
        scores = ask(live, MODEL, columns).output("score")
        np.testing.assert_allclose(np.ravel(scores), expected, atol=1e-5, err_msg=name)


def test_counts_keep_their_type(story):
    dtypes = {t.name: (t.dim, t.dtype) for t in story.version.manifest.embeddings}
    assert dtypes["seen"] == (2, "float32")
    assert dtypes["pairs"] == (4, story.dtype)


def test_explanation_names_what_counted_pairs_add(story, live):
    columns, history = user(20)
    trainer, row = story.trainer_of(3), 1
    inputs = {name: lists(column) for name, column in columns.items()}
    status, answer = live.post_json(f"/admin/models/{MODEL}/explain", {"inputs": inputs, "row": row, "vectors": True})
    assert status == 200, answer
    read = answer["sides"][0]["inputs"]["seen"]
    assert read["length"] == len(history)
    (f,) = (f for f in trainer.manifest.features if f.name == "seen")
    counts = trainer.dense_inputs(columns)["x"][row, f.offset : f.offset + f.width]
    assert counts[0] > 0
    np.testing.assert_array_equal(np.sum([one["vector"] for one in read["ids"]], axis=0), counts)
    score = answer["sides"][0]["outputs"]["score"][0]
    assert score == pytest.approx(trainer.score(columns)[row], abs=1e-5)
    assert read["score_change"] != 0
    assert {"pairs", "pairs.2", "aged", "weight"} <= {
        name for name, each in answer["sides"][0]["inputs"].items() if "score_change" in each
    }


# The last one: it goes back.
def test_each_generation_and_the_way_back_give_the_scores_of_its_time(story, live):
    users = {length: user(length)[0] for length in LENGTHS}
    expected = {step: {n: story.trainer_of(step).score(columns) for n, columns in users.items()} for step in range(4)}
    assert np.abs(expected[3][20] - expected[0][20]).max() > 1e-3
    for step in range(4):
        with GenerationScorer(str(story.folder / "repository"), MODEL, Generation(1, step)) as scorer:
            for length, columns in users.items():
                scores = np.ravel(scorer.score(columns, len(CANDIDATES), ["score"]))
                np.testing.assert_allclose(scores, expected[step][length], atol=1e-5)
    for step in (3, 1, 0):
        if step < 3:
            status, _ = live.post_json(f"/admin/models/{MODEL}/rollback", {"generation": f"1.{step}"})
            assert status == 200
        until(partial(serves, live, f"1.{step}"))
        for length, columns in users.items():
            scores = np.ravel(tensorflow_columns(live, MODEL, columns).output("score"))
            np.testing.assert_allclose(scores, expected[step][length], atol=1e-5)
