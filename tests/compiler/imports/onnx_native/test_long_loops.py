"""Loops whose trips depend on values: a request that asks for too many is ended, and others are answered meanwhile."""

import time

import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.backends.base import Artefact, EndableRun, EndedRun, IoSpec
from freshet_serving.processor.backends.registry import load_backend
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import Expired
from freshet_serving.processor.running.run_limit import RunEnds, RunLimit
from tests.compiler.imports.onnx_native.native_models import spelled

SIZE = 512
# Trips go on while the largest value of the batch is above the trip's number; the result does not depend on that.
LONG = """g (float[n, 512] x) => (float[n, 512] y) {
    trips = Constant <value: tensor = int64 {10000}> ()
    go = Constant <value: tensor = bool {1}> ()
    y = Loop <body = b (int64 i, bool c, float[r, 512] v) => (bool again, float[r, 512] w) {
        most = ReduceMax <keepdims: int = 0> (v)
        f = Cast <to = 1> (i)
        again = Less (f, most)
        a = MatMul (v, eye)
        d = MatMul (a, eye)
        e = MatMul (d, eye)
        h = MatMul (e, eye)
        w = MatMul (h, eye)
    }> (trips, go, x)
}"""


def long_loop(path):
    return spelled(path, LONG, eye=np.eye(SIZE, dtype=np.float32))


def test_bound_run_ends_within_a_loop_and_runs_again(tmp_path):
    text = long_loop(tmp_path / "m.onnx").read_bytes()
    program = load_backend("onnxruntime").open_program(IoSpec.of_matrix(SIZE, {"y": SIZE}))
    program.add(Artefact(64, text, []))
    x, y = np.full((64, SIZE), 1e9, np.float32), np.zeros((64, SIZE), np.float32)
    run = program.with_weights({})[64].bind_buffers({"x": x}, {"y": y})
    assert isinstance(run, EndableRun)
    limit = RunLimit(RunEnds(SystemClock()))
    limit.until_s = limit._ends.clock.now_s() + 0.05
    with pytest.raises(EndedRun):
        limit.run(run)
    x[:], limit.until_s = 2, limit._ends.clock.now_s() + 60
    limit.run(run)
    np.testing.assert_array_equal(y, x)


def test_request_of_too_many_trips_ends_and_others_are_answered(tmp_path):
    import_model(long_loop(tmp_path / "m.onnx"), tmp_path / "repository", "long", 1, ImportOptions(buckets=(1, 64)))
    few = np.full((3, SIZE), 2, np.float32)
    many = np.full((64, SIZE), 1e9, np.float32)
    with Processor.initialize(ProcessorConfig(tmp_path / "repository")) as processor:
        # With and without a time of their own.
        batch = [(few, None), (many, 20), (few, 20), (many[:1], None), (few, None)]
        got = processor.batch_process([PredictRequest("long", {"x": x}, timeout_s=timeout_s) for x, timeout_s in batch])
        assert isinstance(got[1], Expired), got[1]
        for n in (0, 2, 4):
            np.testing.assert_array_equal(got[n].outputs["y"], few)
        began_s = time.monotonic()
        with pytest.raises(Expired):
            processor.process(PredictRequest("long", {"x": many}, timeout_s=0.2))
        # By itself it takes 10 s or more of a core.
        assert time.monotonic() < began_s + 8
