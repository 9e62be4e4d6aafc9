"""Buffers: rows that all buckets share, and runs that are bound before they are needed."""

import threading
import weakref

import numpy as np

from freshet_serving.processor.backends.base import IoSpec
from freshet_serving.processor.package.subgraphs import SCORE
from freshet_serving.processor.running.buffers import Buffers, BufferSize
from tests.support.packages import make_delta, make_inputs, open_version, write_package


class Executable:
    """Counts how often it is bound and run."""

    def __init__(self, bucket):
        self.bucket, self.bound, self.ran = bucket, [], 0

    def bind_buffers(self, inputs, outputs):
        self.bound.append((inputs["x"], outputs["score"]))

        def run():
            self.ran += 1

        return run


def make():
    return Buffers({SCORE: BufferSize(IoSpec.of_matrix(3, {"score": 1}), 8)}, 2, 1)


def test_prebound_executable_is_used_and_never_bound_again():
    buffers, executable = make(), Executable(4)
    buffers.bind_ahead({SCORE: {4: executable}}, run=True)
    assert executable.ran == 1
    inputs, outputs, run = buffers.get(executable, SCORE)
    x = inputs["x"]
    run()
    assert (len(executable.bound), executable.ran) == (1, 2)
    assert executable.bound[0][0] is x
    assert executable.bound[0][1] is outputs["score"]
    assert (x.shape, outputs["score"].shape) == ((4, 3), (4, 1))
    assert x.ctypes.data % 64 == 0


def test_older_state_keeps_its_runs_until_the_flip():
    buffers, old, new = make(), Executable(4), Executable(4)
    inputs, _, run = buffers.get(old, SCORE)
    buffers.bind_ahead({SCORE: {4: new}})
    assert buffers.get(old, SCORE)[2] is run
    again, _, after = buffers.get(new, SCORE)
    assert again is inputs
    assert after is not run
    assert new.ran == 0
    assert buffers.get(new, SCORE)[2] is after


def test_executable_that_was_not_prebound_is_bound_on_first_use():
    buffers, executable = make(), Executable(2)
    buffers.bind_ahead({SCORE: {2: Executable(2), 8: Executable(8)}})
    buffers.get(executable, SCORE)
    assert len(executable.bound) == 1


def test_runs_of_stale_executables_are_released():
    buffers, old, new = make(), Executable(4), Executable(4)
    buffers.get(old, SCORE)
    gone = weakref.ref(old)
    buffers.bind_ahead({SCORE: {4: new}})
    buffers.drop_stale_runs({SCORE: {4: new}})
    del old
    assert gone() is None
    buffers.get(new, SCORE)
    buffers.drop_stale_runs({SCORE: {4: new, 8: Executable(8)}})
    assert len(new.bound) == 1


def test_flip_of_dense_weights_frees_the_old_executables(tmp_path):
    version = open_version(write_package(tmp_path))
    replica = version.replicas
    lent = replica.borrow_buffers()
    with replica.pinned(0) as state:
        gone = [weakref.ref(e) for e in state.executables[SCORE].values()]
        for executable in state.executables[SCORE].values():
            lent.get(executable, SCORE)
    del state, executable
    version.apply(make_delta(1, [1], dense_seed=5))
    assert [ref() for ref in gone] == [None] * len(gone)


def test_smaller_bucket_uses_the_first_rows_of_a_larger_one():
    buffers = make()
    (small, few, _), (large, many, _) = (buffers.get(Executable(n), SCORE) for n in (2, 8))
    rows = buffers.inputs(SCORE, 0, 8)
    for part, whole in ((small["x"], large["x"]), (few["score"], many["score"]), (large["x"], rows["x"])):
        whole[: len(part)] = np.arange(part.size).reshape(part.shape)
        np.testing.assert_array_equal(part.ravel(), np.arange(part.size))
        assert part.flags.c_contiguous


def test_two_threads_first_using_a_bucket_share_its_arrays():
    for _ in range(50):
        buffers, executables, start = make(), [Executable(4), Executable(4)], threading.Barrier(2)

        def work(executable, ahead, buffers=buffers, start=start):
            start.wait()
            buffers.bind_ahead({SCORE: {4: executable}}) if ahead else buffers.get(executable, SCORE)

        threads = [threading.Thread(target=work, args=(e, i)) for i, e in enumerate(executables)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert executables[0].bound[0][0] is executables[1].bound[0][0]


def test_new_executables_are_bound_to_borrowed_buffers_before_the_flip(tmp_path):
    version = open_version(write_package(tmp_path))
    replica = version.replicas
    lent = replica.borrow_buffers()
    with replica.pinned(0) as state:
        runs = {bucket: lent.get(e, SCORE)[2] for bucket, e in state.executables[SCORE].items()}
    assert {bucket: lent._ahead[SCORE, bucket][1] for bucket in runs} == runs
    version.apply(make_delta(1, [1], dense_seed=5))
    with replica.pinned(0) as state:
        for bucket, executable in state.executables[SCORE].items():
            assert lent._ahead[SCORE, bucket][0] is executable
            assert lent.get(executable, SCORE)[2] is not runs[bucket]
    assert replica.borrow_buffers() is not lent


def test_new_weights_run_in_buffers_of_the_stock_while_there_are_any(tmp_path):
    version = open_version(write_package(tmp_path))
    replica, made = version.replicas, []
    stock, new_buffers = list(replica._buffer_pool), replica._new_buffers
    replica._new_buffers = lambda: made.append(new_buffers()) or made[-1]
    version.apply(make_delta(1, [1], dense_seed=5))
    assert (replica._buffer_pool, made) == (stock, [])
    lent = [replica.borrow_buffers() for _ in stock]
    version.apply(make_delta(2, [1], dense_seed=6))
    assert (replica._buffer_pool, len(made)) == ([], 1)
    assert made[0] not in lent


def test_unreferenced_buffers_are_forgotten(tmp_path):
    replica = open_version(write_package(tmp_path)).replicas
    lent = [replica.borrow_buffers() for _ in range(3)]
    assert len(replica._borrowed) == 3
    del lent
    assert len(replica._borrowed) == 0
    bound = replica.plan.bind_inputs(make_inputs([1]))
    assert bound.rows == 1
    assert np.all(replica.borrow_buffers().counts == 0)
