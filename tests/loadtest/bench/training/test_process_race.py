"""The race of one process and two, with small batches, and what is made of its turns."""

import json

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")
pytest.importorskip("mpi4py", reason="several processes need the mpi extra")

from loadtest.bench.training import process_race
from loadtest.bench.training.process_shapes import SHAPES, ProcessShape
from loadtest.bench.training.process_side import filled

pytestmark = pytest.mark.tensorflow


def turn(step_s, computed_s=0.0, sent=0, slices=0):
    spent = {f"{stage} cpu": computed_s / 3 for stage in process_race.STAGES}
    spent |= dict.fromkeys(process_race.STAGES, 0.0)
    return {"step_s": step_s, "spent": spent | {"cpu": step_s, "step bytes": sent, "slice bytes": slices}}


def test_rows_follow_a_power_law_and_tables_are_full():
    shape = ProcessShape(2, 3, 64, 1000, (4,))
    ids = shape.ids()
    assert ids.shape == (shape.held_batches, 2, 192)
    assert ids.min() == 0
    assert ids.max() < 1000
    assert (ids < 30).mean() == pytest.approx(0.5, abs=0.05)
    assert np.concatenate([piece.keys for piece in filled(1000, 4)]).tolist() == list(range(1000))


def test_ratio_compares_turns_of_one_round():
    turns = {"one": [turn(4), turn(9)], "two": [turn(2), turn(3)]}
    assert process_race.ratios(turns, "one", "two")[1] == 2.5


def test_modelled_step_grows_with_messages_and_the_reader_limits_it():
    turns = [turn(1, 0.030, 10_000_000, 1_250_000)]
    step_s, left = process_race.on_paper(turns, 2, 10)
    assert (step_s, left) == (pytest.approx(0.030 + 0.008 + 4e-5), 1.0)
    step_s, left = process_race.on_paper(turns, 64, 10)
    assert step_s == pytest.approx(0.063)
    assert left == pytest.approx((0.030 + 0.01575 + 4 * 63 * 1e-5) / 0.063)


@pytest.mark.long
@pytest.mark.campaign
def test_both_sides_learn_in_turn(monkeypatch):
    # The sides are processes of their own, of shapes that are there.
    sides = {"one": process_race.TurnSide("single ids", 1), "two": process_race.TurnSide("single ids", 2)}
    result = process_race.race("single ids", sides, 2, 2)
    assert {name: len(turns) for name, turns in result["turns"].items()} == {"one": 2, "two": 2}
    assert result["turns"]["two"][0]["spent"]["step bytes"] > 0
    assert result["turns"]["one"][0]["spent"]["step bytes"] == 0
    made = {"command": "make -C loadtest processes", "date": "2026-01-01"}
    about = {"cores": 2, "cpu": "some"}
    results = {"machine": about, "origin": made, "shapes": [result]}
    results["wire"] = {"shape": "single ids", "turns": {"float32": [turn(2, 1, 8)], "float16": [turn(1, 1, 4)]}}
    results["auc"] = {"one process": 0.69}
    told = process_race.page(json.loads(json.dumps(results)))
    assert "0.50 of the bytes, **2.00**" in told
    assert "| single ids | 100 |" in told
    assert set(SHAPES) >= {"single ids"}
