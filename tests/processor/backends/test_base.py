"""What every backend must hold to, whatever computes."""

import sys
import threading
import time

import numpy as np
import pytest

from freshet_serving.processor.backends import Artefact, IoSpec, aligned, failed, load_backend, weights_hash
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from tests.processor.backends.artefacts import (
    NAMES,
    SHAPES,
    WIDTH,
    expected,
    make_artefact,
    make_onnx_origin,
    make_stablehlo,
    make_weights,
)
from tests.support.waiting import at_once

OUTPUTS = {"score": 1}
LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "xla": "jaxlib"}


@pytest.fixture(params=LIBRARIES)
def backend(request):
    pytest.importorskip(LIBRARIES[request.param], reason="the library is not installed")
    return load_backend(request.param)


def artefact(backend, bucket):
    if backend.name == "onnxruntime":
        return Artefact(bucket, make_artefact(), NAMES)
    origin = make_onnx_origin() if backend.name == "openvino" else make_stablehlo(bucket)
    return Artefact(bucket, b"", NAMES, origin=origin)


def opened(backend, buckets=(4,), **options):
    program = backend.open_program(IoSpec.of_matrix(WIDTH, OUTPUTS), **options)
    for bucket in buckets:
        program.add(artefact(backend, bucket))
    return program


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, WIDTH), np.float32)


def score(executable, x):
    buffer, y = aligned(x.shape), np.full((len(x), 1), np.nan, np.float32)
    buffer[...] = x
    executable.bind_buffers({"x": buffer}, {"score": y})()
    return y


def assert_scores(executable, weights):
    x = rows(executable.bucket)
    np.testing.assert_allclose(score(executable, x), expected(x, weights), atol=1e-6)


def test_every_bucket_gives_the_scores_of_the_weights_supplied(backend):
    loaded = opened(backend, (1, 4, 16)).with_weights(make_weights())

    assert {bucket: e.bucket for bucket, e in loaded.items()} == {1: 1, 4: 4, 16: 16}
    for executable in loaded.values():
        assert_scores(executable, make_weights())


def test_new_weights_make_new_executables_and_keep_existing_ones(backend):
    program, x = opened(backend), rows(4)
    before = program.with_weights(make_weights(0))[4]
    y = np.zeros((4, 1), np.float32)
    run = before.bind_buffers({"x": x}, {"score": y})

    after = program.with_weights(make_weights(1))[4]

    assert_scores(after, make_weights(1))
    run()
    np.testing.assert_allclose(y, expected(x, make_weights(0)), atol=1e-6)


def test_weights_may_be_read_only_and_may_change_after(backend):
    x, weights = rows(4), make_weights()
    wanted = expected(x, weights)
    for array in weights.values():
        array.setflags(write=False)
    executable = opened(backend).with_weights(weights)[4]
    for array in weights.values():
        array.setflags(write=True)
        array[...] = 0

    np.testing.assert_allclose(score(executable, x), wanted, atol=1e-6)


@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "not aligned"])
def test_binding_reads_and_writes_the_same_buffers_on_every_run(backend, shift):
    x = aligned((4 * WIDTH + shift,))[shift:].reshape(4, WIDTH)
    y = np.zeros((5, 1), np.float32)[1:]
    run = opened(backend).with_weights(make_weights())[4].bind_buffers({"x": x}, {"score": y})
    for seed in range(2):
        x[:] = rows(4, seed)
        run()
        np.testing.assert_allclose(y, expected(x, make_weights()), atol=1e-6)


def test_padding_rows_do_not_touch_the_others(backend):
    executable, x = opened(backend, (16,)).with_weights(make_weights())[16], rows(16)
    full = score(executable, x)
    x[5:] = np.nan

    np.testing.assert_array_equal(score(executable, x)[:5], full[:5])


def test_two_threads_with_own_bindings_get_their_own_scores(backend):
    executable, start = opened(backend, (64,), runs=2).with_weights(make_weights())[64], threading.Barrier(2)
    wrong: list[int] = []

    def work(seed):
        x, y = rows(64, seed), np.zeros((64, 1), np.float32)
        wanted, run = expected(x, make_weights()), executable.bind_buffers({"x": x}, {"score": y})
        start.wait()
        for i in range(200):
            y[:] = -1
            run()
            if not np.allclose(y, wanted, atol=1e-6):
                wrong.append(i)

    at_once(work, (1, 2))

    assert wrong == []


def test_more_bindings_than_runs_at_once_work_too(backend):
    executable, x = opened(backend, runs=1).with_weights(make_weights())[4], rows(4)
    for _ in range(3):
        assert_scores(executable, make_weights())
    outputs = [np.zeros((4, 1), np.float32) for _ in range(3)]
    for run in [executable.bind_buffers({"x": x}, {"score": y}) for y in outputs]:
        run()
    for y in outputs:
        np.testing.assert_allclose(y, expected(x, make_weights()), atol=1e-6)


def test_run_releases_the_interpreter_to_other_threads(backend):
    executable = opened(backend, (65536,)).with_weights(make_weights())[65536]
    x, y = aligned((65536, WIDTH)), np.zeros((65536, 1), np.float32)
    run, done, turns = executable.bind_buffers({"x": x}, {"score": y}), threading.Event(), 0
    run()

    def work():
        for _ in range(20):
            run()
        done.set()

    # With a switch interval this long the interpreter changes hands only where a thread gives it up.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            turns += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert turns > 3


def test_missing_or_misshapen_weight_is_refused(backend):
    program, weights = opened(backend), make_weights()
    with pytest.raises(BadInput, match="dense weight 'mlp_out/kernel' is missing"):
        program.with_weights({name: weights[name] for name in NAMES[:-1]})
    with pytest.raises(BadInput, match=r"'mlp_0/bias': expected float32 \[8\], got float|and the listed weights"):
        program.with_weights(weights | {"mlp_0/bias": np.zeros(3, np.float32)})
    assert_scores(program.with_weights(weights)[4], weights)


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\xff" * 4096, b"ML\xefR", b'{"a": 1}'])
def test_malformed_artefact_is_refused_without_path_or_stack_trace(backend, data):
    program = opened(backend)
    with pytest.raises(BadInput, match=r"^executable") as caught:
        program.add(Artefact(4, data, NAMES))
    assert "/" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_scores(program.with_weights(make_weights())[4], make_weights())


@pytest.mark.parametrize("outputs", [{"score": 2}, {"score": 1, "other": 1}])
def test_artefact_with_wrong_outputs_or_width_is_refused(backend, outputs):
    for width, ends in ((WIDTH, outputs), (WIDTH + 1, OUTPUTS)):
        program = backend.open_program(IoSpec.of_matrix(width, ends))
        with pytest.raises(BadInput):
            program.add(artefact(backend, 4)) or program.with_weights(make_weights())


@pytest.mark.parametrize(
    ("x", "outputs"),
    [
        (np.zeros((3, WIDTH), np.float32), {"score": np.zeros((4, 1), np.float32)}),
        (np.zeros((4, WIDTH), np.float64), {"score": np.zeros((4, 1), np.float32)}),
        (np.zeros((WIDTH, 4), np.float32).T, {"score": np.zeros((4, 1), np.float32)}),
        (np.zeros((4, WIDTH), np.float32), {"score": np.zeros((5, 1), np.float32)}),
        (np.zeros((4, WIDTH), np.float32), {}),
        (np.zeros((4, WIDTH), np.float32), {"other": np.zeros((4, 1), np.float32)}),
        (np.zeros((4, WIDTH), np.float32), {"score": np.broadcast_to(np.float32(0), (4, 1))}),
    ],
)
def test_mismatched_buffers_are_refused_before_any_pointer_is_taken(backend, x, outputs):
    executable = opened(backend).with_weights(make_weights())[4]
    with pytest.raises(ValueError, match="expected"):
        executable.bind_buffers({"x": x}, outputs)


def test_weights_are_distinguished_by_value_shape_and_name():
    weights = make_weights()
    same = {name: array.copy() for name, array in reversed(weights.items())}
    assert weights_hash(weights, NAMES) == weights_hash(same, list(reversed(NAMES)))
    same["mlp_0/bias"][0] += 1
    assert weights_hash(weights, NAMES) != weights_hash(same, NAMES)
    assert weights_hash(weights, NAMES[:2]) != weights_hash(weights, NAMES[1:])
    with pytest.raises(BadInput, match="dense weight 'b' is missing"):
        weights_hash(weights, ["b"])
    assert set(SHAPES) == set(NAMES)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer"),
    ],
)
def test_run_that_lacks_memory_is_retryable(error):
    made = failed(4, "onnxruntime", error)
    assert type(made) is NotReady
    assert str(made) == "onnxruntime has not enough memory for a batch of 4 rows"


def test_run_that_fails_otherwise_is_not_retryable():
    made = failed(4, "onnxruntime", RuntimeError("a node failed"))
    assert type(made) is FreshetError
    assert str(made) == "onnxruntime failed on a batch of 4 rows"
