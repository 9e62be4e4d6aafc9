"""The race with sides that only count: turns, the best of several ways, ratios by round."""

import io
import sys

import numpy as np
import pytest
from rich.console import Console

from loadtest.bench.training.race import TrainerVariant, best, page, race, ratios
from loadtest.bench.training.turns import FEATURES, HELD_ROWS, RaceShape

SIDE = """
import sys, time
from loadtest.bench.training.turns import serve

def learn(steps):
    print("a library's chatter")
    until = time.perf_counter() + steps * {us} * 1e-6
    while time.perf_counter() < until:
        pass
    return 0.5

serve(learn)
"""


@pytest.fixture
def console():
    return Console(file=io.StringIO())


def side(name, us):
    return TrainerVariant(name, f"{us} us a step", [sys.executable, "-c", SIDE.format(us=us)])


def test_fastest_variant_enters_the_race_and_a_failing_one_not(console):
    broken = TrainerVariant("Keras", "broken", [sys.executable, "-c", "raise SystemExit(1)"])
    assert best([side("Keras", 900), broken, side("Keras", 100)], console).settings == "100 us a step"
    assert best([broken], console) is None
    assert "Keras (broken) ended" in console.file.getvalue()


def test_sides_take_turns_and_are_compared_by_round(console):
    result = race([side("Freshet", 100), side("Keras", 400)], rounds=2, seconds=0.02, console=console)
    assert {name: len(turns) for name, turns in result["turns"].items()} == {"Freshet": 2, "Keras": 2}
    assert all(wall_s >= 100e-6 for wall_s, _ in result["turns"]["Freshet"])
    result["turns"] = {"Freshet": [[1.0, 1.5], [2.0, 3.0]], "Keras": [[3.0, 3.0], [2.0, 2.0]]}
    assert ratios(result, "Keras") == [3.0, 1.0]
    about = {"cores": 2, "cpu": "a CPU"}
    made = {"date": "today", "command": "make -C loadtest train"}
    text = page({"machine": about, "origin": made, "races": {"512 1000": result}})
    assert "| 512 | 1,000 | Keras | 400 us a step | 2500.00 | 205 | 2500.00 | **2.00** (1.00 to 3.00) |" in text


def test_rows_depend_only_on_the_shape_with_skewed_ids():
    ids, labels = RaceShape(512, 1000).rows()
    assert (ids.shape, labels.shape) == ((HELD_ROWS, FEATURES), (HELD_ROWS,))
    assert (ids.min(), ids.max()) == (0, 999)
    counts = np.bincount(ids[:, 0])
    assert counts[:10].sum() > 0.25 * HELD_ROWS
    assert counts[500:].sum() < 0.15 * HELD_ROWS
    assert 0.05 < labels.mean() < 0.95
