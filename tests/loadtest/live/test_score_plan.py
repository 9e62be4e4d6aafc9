import numpy as np
import pytest

from loadtest.live.score_plan import CLEAR, TOLERANCE, MixedGenerations, ScorePlan, WrongReply, build, moved
from tests.loadtest.live.deltas import STEPS, write_deltas
from tests.loadtest.packages import IDS, table_rows, write_delta, write_package


@pytest.fixture
def plan(tmp_path):
    return build(write_package(tmp_path), write_deltas(tmp_path), requests=3, rows=4)


def test_every_request_has_scores_for_every_generation(plan):
    assert plan.expected.shape == (STEPS + 1, 3, 4)
    assert plan.inputs["ids"].shape == (3, 4, 2)
    assert (plan.model, plan.version, plan.requests) == ("tiny", 3, 3)
    assert moved(plan).min() > 0


def test_only_scores_of_the_named_generation_pass(plan):
    for step in range(STEPS + 1):
        plan.check(1, f"3.{step}", plan.expected[step, 1] + TOLERANCE / 2)
    for step in range(STEPS):
        with pytest.raises(MixedGenerations):
            plan.check(1, f"3.{step}", plan.expected[step + 1, 1])


def test_one_row_of_a_different_generation_is_mixed(plan):
    row = np.abs(plan.expected[2, 0] - plan.expected[1, 0]).argmax()
    scores = plan.expected[1, 0].copy()
    scores[row] = plan.expected[2, 0, row]
    with pytest.raises(MixedGenerations):
        plan.check(0, "3.1", scores)


def test_non_finite_scores_count_as_mixed(plan):
    with pytest.raises(MixedGenerations):
        plan.check(0, "3.0", np.full(4, np.nan, np.float32))


@pytest.mark.parametrize("generation", [None, "", "3", "3.", "3.99", "3.-1", "2.1", "x.y"])
def test_generation_that_no_delta_made_is_a_wrong_reply(plan, generation):
    with pytest.raises(WrongReply, match="generation") as caught:
        plan.check(0, generation, plan.expected[0, 0])
    assert not isinstance(caught.value, MixedGenerations)


def test_reply_with_too_few_scores_is_a_wrong_reply(plan):
    with pytest.raises(WrongReply, match="4 scores wanted, got 3"):
        plan.check(0, "3.0", plan.expected[0, 0, :3])


def test_deltas_that_change_no_score_are_refused(tmp_path):
    folder = write_package(tmp_path)
    still = [write_delta(tmp_path / "1.safetensors", 1, IDS, table_rows(0))]
    with pytest.raises(ValueError, match="must move"):
        build(folder, still, requests=2, rows=2)


def test_score_plan_round_trips_through_its_file(plan, tmp_path):
    plan.save(tmp_path / "plan.safetensors")
    read = ScorePlan.load(tmp_path / "plan.safetensors")
    assert (read.model, read.version) == (plan.model, plan.version)
    assert (read.expected == plan.expected).all()
    assert all((read.inputs[name] == values).all() for name, values in plan.inputs.items())


def test_probe_row_is_one_that_deltas_change(plan):
    one = plan.one_row()
    assert one.expected.shape == (STEPS + 1, 1, 1)
    assert one.columns(0)["ids"].shape == (1, 2)
    assert (np.abs(np.diff(one.expected[:, 0, 0])) > CLEAR).any()
    one.check(0, "3.2", one.expected[2, 0])
