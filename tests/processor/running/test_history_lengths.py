"""Histories of every length are scored alike: by parts of each length, beside any other rows, and all of them whole."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package import shorter
from freshet_serving.processor.running.runner import Runner
from tests.models.zoo.sequence_models import make_batch, make_trainer, of_request, publish

pytestmark = pytest.mark.tensorflow

LENGTH, ROWS = 80, 8
SHORT = LENGTH // 2
EVENTS = (0, 1, 7, SHORT - 1, SHORT, SHORT + 1, LENGTH - 1, LENGTH, LENGTH + 30)
LONG = pytest.mark.long
ARCHS = (pytest.param("din", marks=LONG), "stca", pytest.param("sasrec", marks=LONG), pytest.param("hstu", marks=LONG))


@pytest.fixture(scope="module", params=ARCHS)
def served(request, tmp_path_factory):
    """Return a trainer, a processor that serves what it has learned, whether events have times, and the repository."""
    arch, folder = request.param, tmp_path_factory.mktemp(request.param)
    options = {} if arch == "din" else {"units": 8, "layers": 1 if arch == "stca" else 2}
    trainer = make_trainer(arch, LENGTH, arch == "hstu", **options)
    trainer.learn(make_batch(64, EVENTS, timed=arch == "hstu"))
    publish(trainer, folder / "r", buckets=(1, ROWS))
    with Processor.initialize(ProcessorConfig(str(folder / "r"), sessions=1)) as processor:
        always_short(processor)
        yield trainer, processor, arch == "hstu", folder / "r"


def always_short(processor):
    """Have requests divided by parts of every length, whatever this machine's costs are."""
    graphs = processor.predictor.replica("m").graphs
    graphs.pays = lambda parts, rows: True
    graphs._lengths = graphs._shorter
    assert graphs.lengths == [SHORT]


def scores(processor, columns):
    return processor.process(PredictRequest("m", columns)).outputs["score"][:, 0]


def test_scores_equal_trained_ones_at_every_length(served):
    trainer, processor, timed, _ = served
    columns = make_batch(ROWS, EVENTS, seed=7, items=40, timed=timed).columns
    for request in range(ROWS):
        asked = of_request(columns, ROWS, request)
        np.testing.assert_allclose(scores(processor, asked), trainer.score(asked), atol=1e-5)


def test_scores_of_short_and_longest_parts_differ_by_rounding(served):
    _, processor, timed, _ = served
    graphs = processor.predictor.replica("m").graphs
    columns = make_batch(ROWS, (0, 1, 7, SHORT - 1, SHORT), seed=8, timed=timed).columns
    for request in range(5):
        asked = of_request(columns, ROWS, request)
        short = scores(processor, asked)
        graphs._lengths = []
        try:
            longest = scores(processor, asked)
        finally:
            graphs._lengths = graphs._shorter
        np.testing.assert_allclose(short, longest, atol=1e-6)


def test_device_stages_run_the_shortest_parts_that_fit(served, monkeypatch):
    trainer, _, timed, repository = served
    ran, run = [], Runner.run_filled_user

    def noting(runner, batch, user, *given):
        ran.append(user.name)
        return run(runner, batch, user, *given)

    monkeypatch.setattr(Runner, "run_filled_user", noting)
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1, device_stages=1)) as processor:
        always_short(processor)
        for events in (0, SHORT, SHORT + 1, LENGTH):
            asked = of_request(make_batch(ROWS, (events,), seed=events, timed=timed).columns, ROWS)
            np.testing.assert_allclose(scores(processor, asked), trainer.score(asked), atol=1e-5)
    assert ran == [shorter("user", SHORT)] * 2 + ["user"] * 2


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.integers(0, LENGTH), others=st.lists(st.integers(0, 29), min_size=ROWS - 1, max_size=ROWS - 1))
def test_other_rows_of_a_shape_change_no_bit(served, events, others):
    _, processor, timed, _ = served
    asked = of_request(make_batch(ROWS, (events,), seed=9, timed=timed).columns, ROWS)
    before = scores(processor, asked)
    asked["item"] = np.array([*asked["item"][:1], *others])
    asked["price"] = np.array([*asked["price"][:1], *np.linspace(-5, 5, ROWS - 1)], np.float32)
    assert scores(processor, asked)[0].tobytes() == before[0].tobytes()
