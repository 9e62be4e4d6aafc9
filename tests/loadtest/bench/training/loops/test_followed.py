"""A network's loop: what is served after each delta is compared with what its framework scores."""

import sys
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.models.publishing.publisher import Publisher
from loadtest.bench.training.loops import followed
from loadtest.bench.training.loops.followed import (
    EQUAL,
    FAILED,
    REFUSED,
    WRONG,
    SideProcess,
    Stopped,
    difference,
    follow,
)
from loadtest.bench.training.loops.side import write_requests
from tests.compiler.imports.onnx_native.native_models import spelled

ROOT = Path(__file__).parents[5]
GRAPH = """g (int64[n] item, float[n, 2] price) => (float[n, 1] score) {
    row = Gather ("items.weight", item)
    both = Mul (row, price)
    sum = MatMul (both, "top.weight")
    score = Shrink <lambd: float = 0.0> (sum)
}"""
# Shrink has no translation to TensorFlow, which therefore is not imported.


class Framework:
    """What a side answers, of a network with two weights; `off` is added to the scores that it gives."""

    def __init__(self, folder, off=0.0):
        draw = np.random.default_rng(0)
        self.rows, self.top = (draw.standard_normal(s).astype(np.float32) for s in ((9, 2), (2, 1)))
        self.folder, self.off, self.draw = folder, off, draw

    def __call__(self, do, **command):
        if do == "build":
            weights = {"items__weight": self.rows, "top__weight": self.top}
            return {"source": str(spelled(self.folder / "m.onnx", GRAPH, **weights))}
        if do == "attach":
            self.publisher = Publisher(command["repository"], command["model"])
            return {}
        self.rows = self.rows + np.float32(0.1)
        self.top = self.top - np.float32(0.1)
        item, price = self.draw.integers(0, 9, 5), self.draw.standard_normal((5, 2)).astype(np.float32)
        score = (self.rows[item] * price) @ self.top + np.float32(self.off)
        write_requests(Path(command["requests"]), [({"item": item, "price": price}, {"score": score})])
        generation = self.publisher.publish({"items.weight": (np.arange(9), self.rows)}, dense={"top.weight": self.top})
        return {"generation": str(generation)}


@pytest.mark.unguarded("random weights are other models altogether")
def test_loop_is_equal_or_wrong_by_its_scores(tmp_path):
    counted = []
    loop = follow(Framework(tmp_path), "small", tmp_path, 2, lambda: counted.append(1))
    assert (loop.verdict, loop.message, loop.deltas, loop.requests, len(counted)) == (EQUAL, "", 2, 2, 2)
    assert loop.served == "1 tables, 1 dense weights"
    (tmp_path / "again").mkdir()
    wrong = follow(Framework(tmp_path / "again", off=0.5), "small", tmp_path / "again", 2, lambda: None)
    assert (wrong.verdict, wrong.deltas) == (WRONG, 2)
    assert wrong.message == "first at generation 1.1, by 5.0e-01"


def test_loop_that_is_refused_gives_the_reason(tmp_path, monkeypatch):
    def refuse(**command):
        raise Stopped(REFUSED, "no")

    loop = follow(refuse, "small", tmp_path, 2, lambda: None)
    assert (loop.verdict, loop.message, loop.deltas) == (REFUSED, "no", 0)


def test_difference_is_relative_above_one_and_infinite_without_scores():
    served = {"the_score": np.array([[2.0, 0.5]])}
    assert difference(served, {"score": np.array([2.5, 0.5])}) == pytest.approx(0.2)
    assert difference(served, {"score": np.array([2.0, 0.25])}) == 0.25
    for expected in ({"score": np.zeros(3)}, {"score": np.zeros(2), "more": np.zeros(2)}, {"score": [np.nan, 0.5]}):
        assert difference(served, {name: np.asarray(scores) for name, scores in expected.items()}) == np.inf


def test_answers_of_a_process_are_read_and_its_end_is_noticed(tmp_path):
    program = 'import sys; sys.stdin.readline(); print(\'{"refused": "no"}\', flush=True); sys.stdin.readline()'
    with SideProcess([sys.executable, "-c", program], ROOT, {}, tmp_path / "log") as side:
        with pytest.raises(Stopped, match="no") as refused:
            side.ask(do="attach")
        with pytest.raises(Stopped, match="the framework's process ended") as ended:
            side.ask(do="learn")
    assert (refused.value.verdict, ended.value.verdict) == (followed.REFUSED, FAILED)
