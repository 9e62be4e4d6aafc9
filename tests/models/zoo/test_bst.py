"""BST: trained, served and a plain numpy reference score alike, and its division is refused with the reason."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.building.parts import parts
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.repository.version import VersionReader
from tests.models.zoo.sequence_models import (
    Rows,
    check_reference,
    dense,
    end_of,
    learned,
    make_batch,
    make_trainer,
    norm,
    of_request,
    publish,
    softmax,
)

pytestmark = pytest.mark.tensorflow

LENGTH, UNITS, LAYERS = 7, 8, 2


def reference(rows):
    """BST one row at a time, as its module writes it."""
    w, found = rows.weights, []
    for row, t, events in zip(rows.x, rows.target, rows.events):
        every = np.zeros((len(events) + 1, events.shape[1]))
        every[:-1], every[-1, : len(t)] = events, t
        x = dense(every, w, "history_event") + w["history_position/rows"][0, : len(every)][::-1]
        for i in range(LAYERS):
            query, keys, values = (dense(x, w, f"history_{part}_{i}") for part in ("query", "key", "value"))
            attended = [softmax(keys @ q / np.sqrt(UNITS)) @ values for q in query]
            y = norm(x + dense(np.array(attended), w, f"history_out_{i}"), w, f"history_norm_{i}_0")
            between = dense(y, w, f"history_first_{i}")
            between = np.where(between > 0, between, 0.01 * between)
            x = norm(y + dense(between, w, f"history_second_{i}"), w, f"history_norm_{i}_1")
        found.append(end_of(w, [row, x[-1], x.mean(0)]))
    return np.array(found)


@pytest.fixture(scope="module")
def trainer():
    return learned("bst", LENGTH, units=UNITS, layers=LAYERS)


def test_trained_scores_equal_numpy_reference(trainer):
    check_reference(trainer, LENGTH, reference)


def check_served_whole(trainer, folder, lengths, rows=40, floats=False):
    """Scores of rows of several users, and of candidates of one, from a version that is not divided."""
    publish(trainer, folder)
    graphs = VersionReader(folder / "m" / "1").manifest.graphs
    assert list(graphs) == ["score"]
    assert "history" in [i.name for i in graphs["score"].inputs]
    columns = make_batch(rows, lengths, seed=999, items=40, floats=floats).columns
    with Processor.initialize(ProcessorConfig(str(folder), sessions=1)) as processor:
        for asked in (columns, *(of_request(columns, rows, n) for n in range(len(lengths)))):
            got = processor.process(PredictRequest("m", asked)).outputs["score"]
            np.testing.assert_allclose(got[:, 0], trainer.score(asked), atol=1e-5)


def test_served_scores_equal_trained_ones(trainer, tmp_path):
    check_served_whole(trainer, tmp_path / "r", (0, 1, LENGTH - 1, LENGTH, LENGTH + 9), floats=True)


def test_division_is_refused_with_the_reason_in_one_line(trainer):
    made = parts(trainer.dense.published(), trainer.manifest.features, (64,), trainer.manifest.sequences)
    assert made.user_split is None
    (line,) = made.notes
    assert line.startswith("user-once: refused: ")
    assert "attend to the candidate" in line
    assert "\n" not in line


@pytest.mark.long
@pytest.mark.parametrize("length", [256, pytest.param(1000, marks=pytest.mark.campaign)])
def test_long_histories_score_as_the_reference(length, tmp_path):
    trainer = make_trainer("bst", length, units=UNITS, layers=LAYERS)
    trainer.learn(make_batch(64, (length, 50, 7, 1, 0)))
    columns = make_batch(12, (0, 1, 7, 50, length - 1, length), seed=999).columns
    np.testing.assert_allclose(trainer.score(columns), reference(Rows(trainer, columns)), atol=1e-5)
    check_served_whole(trainer, tmp_path / "r", (0, 1, 7, 50, length - 1, length), 12)
