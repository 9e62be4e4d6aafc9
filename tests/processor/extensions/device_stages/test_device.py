"""Device stages: large batches out of what many sessions fill, and replies as if there were none."""

import queue
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady, Overloaded
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import SCORE, write_delta
from freshet_serving.processor.sessions.placement import plan
from freshet_serving.processor.sessions.request import PredictReply
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig
from freshet_serving.processor.sessions.stages import staging_count
from freshet_serving.processor.versions.overview import model_stats
from tests.processor.backends.artefacts import make_weights
from tests.processor.sessions.fakes import TIMEOUT_S, Answers, FakeReplica, assert_answers, group
from tests.support.packages import make_delta, make_inputs, reference, tag_id, write_package
from tests.support.waiting import until


class Device(FakeReplica):
    """A replica whose runs can be held up, and whose numbers tell the state: y = 2 * x + the state's step."""

    def __init__(self, costs=None):
        super().__init__(costs)
        self.step = 0
        self.log.hold, self.log.started, self.log.error, self.log.refused = None, threading.Semaphore(0), None, None

    def pin(self, reader):
        state = super().pin(reader)
        executables = {
            b: SimpleNamespace(bucket=b, bind_buffers=self.stepping(b, state.epoch)) for b in self.costs.cost
        }
        executables = {SCORE: executables}
        return SimpleNamespace(**{**vars(state), "executables": executables, "publish_seq": state.epoch})

    def fill(self, view, out):
        super().fill(view, out)
        # Rows of another epoch than the executable's would show in z.
        out[: int(view.spans[:, 1].sum())] += 1000 * view.epoch

    def stepping(self, bucket, step):
        log = self.log

        def bind_buffers(inputs, outputs):
            x = inputs["x"]

            def run():
                log.started.release()
                if log.hold is not None:
                    assert log.hold.wait(TIMEOUT_S)
                if log.error is not None:
                    raise log.error
                if log.refused is not None and log.refused in x - 1000 * step:
                    # What a library does (backends.onnxruntime): nothing is left of the rows that were filled.
                    x[:] = 0
                    raise BadInput("the model refuses these inputs")
                log.runs.append(bucket)
                rows = x - 1000 * step
                outputs["y"][:] = 2 * rows
                outputs["z"][:] = np.concatenate([rows, -rows], axis=1)

            return run

        return bind_buffers


def idle(replica):
    return all(step is None for step in replica.pins.values())


@given(
    st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=11), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 2),
)
@settings(max_examples=25, deadline=None)
def test_every_request_gets_its_own_rows_in_any_batching(requests, sessions, stages):
    replica, answers = Device({1: 1.0, 2: 1.2, 4: 1.5}), Answers()
    rows = sum(map(len, requests))
    with group(sessions, max_queue_rows=rows, device_stages=stages) as running:
        for number, values in enumerate(requests):
            running.enqueue(answers.work(replica, number, values))
        got = answers.wait(len(requests))
        for number, values in enumerate(requests):
            assert_answers(got[number], values)
        stats = running.statistics()
    assert sum(s.requests for s in stats) == len(requests)
    assert sum(s.rows for s in stats) == rows
    assert idle(replica)


def test_rows_filled_while_the_device_runs_become_one_batch():
    replica, answers = Device({1: 1.0, 8: 1.1}), Answers()
    replica.log.hold = threading.Event()
    with group(2, device_stages=1) as running:
        running.enqueue(answers.work(replica, 0, [7]))
        assert replica.log.started.acquire(timeout=TIMEOUT_S)
        for number in range(1, 8):
            running.enqueue(answers.work(replica, number, [number]))
        until(lambda: running._stages._staging_pool.busy and running.queue_rows == 0)
        until(lambda: sum(len(b.spans) for b in running._stages._batches.values() if b.spans) >= 1)
        until(lambda: sum(sum(s.rows for s, _ in b.spans) for b in running._stages._batches.values()) == 8)
        replica.log.hold.set()
        got = answers.wait(8)
    assert replica.log.runs == [1, 8]
    for number in range(1, 8):
        assert_answers(got[number], [number])


def test_failing_run_fails_only_the_requests_of_its_staging_buffer():
    replica, answers = Device(), Answers()
    with group(1, device_stages=1) as running:
        replica.log.error = ZeroDivisionError("/secret/path")
        running.enqueue(answers.work(replica, 0, [1, 2]))
        error = answers.wait(1)[0]
        replica.log.error = None
        running.enqueue(answers.work(replica, 1, [3]))
        assert_answers(answers.wait(1)[1], [3])
        assert sum(s.failed for s in running.statistics()) == 1
    assert isinstance(error, FreshetError)
    assert "secret" not in str(error)
    assert idle(replica)


def test_refused_request_fails_alone_in_its_staging_buffer():
    replica, answers = Device({1: 1.0, 8: 1.1}), Answers()
    replica.log.hold, replica.log.refused = threading.Event(), 13
    with group(1, device_stages=1) as running:
        running.enqueue(answers.work(replica, 0, [7]))
        assert replica.log.started.acquire(timeout=TIMEOUT_S)
        for number, values in enumerate(([1, 2], [13], [3]), 1):
            running.enqueue(answers.work(replica, number, values))
            until(lambda: running.queue_rows == 0)
        until(lambda: sum(sum(s.rows for s, _ in b.spans) for b in running._stages._batches.values()) == 5)
        replica.log.hold.set()
        got = answers.wait(4)
        stats = running.statistics()
    assert type(got[2]) is BadInput
    for number, values in ((0, [7]), (1, [1, 2]), (3, [3])):
        assert_answers(got[number], values)
    assert (sum(s.failed for s in stats), sum(s.requests for s in stats)) == (1, 3)
    assert idle(replica)


def test_failing_run_fails_a_split_request_once():
    replica, answers = Device(), Answers()
    with group(1, device_stages=2) as running:
        replica.log.error = ZeroDivisionError()
        running.enqueue(answers.work(replica, 0, range(10)))
        assert isinstance(answers.wait(1)[0], FreshetError)
    assert answers.calls.empty()
    assert idle(replica)


def test_rows_that_cannot_be_filled_fail_only_their_request():
    replica, answers = Device({1: 1.0, 8: 1.1}), Answers()
    replica.broken = {13: NotReady("no rows"), 14: ValueError("/secret/path")}
    replica.log.hold = threading.Event()
    with group(1, device_stages=1) as running:
        running.enqueue(answers.work(replica, 0, [1]))
        assert replica.log.started.acquire(timeout=TIMEOUT_S)
        for number, values in enumerate(([2], [13], [3], [14]), 1):
            running.enqueue(answers.work(replica, number, values))
            until(lambda: running.queue_rows == 0)
        replica.log.hold.set()
        got = answers.wait(5)
    assert isinstance(got[2], NotReady)
    assert isinstance(got[4], FreshetError)
    for number, value in ((0, 1), (1, 2), (3, 3)):
        assert_answers(got[number], [value])
    assert idle(replica)


def test_states_are_never_mixed_and_later_fills_see_a_flip():
    replica, answers = Device({1: 1.0, 8: 1.1}), Answers()
    replica.log.hold = threading.Event()
    with group(1, device_stages=1) as running:
        for number, step in enumerate((0, 0, 1, 1, 2)):
            replica.step = step
            if number == 4:
                # There are three trays: the one that runs, and one of each of the first two steps.
                replica.log.hold.set()
            running.enqueue(answers.work(replica, number, [number]))
            until(lambda: running.queue_rows == 0 and not running._queue.running_s)
        got = answers.wait(5)
    for number, step in enumerate((0, 0, 1, 1, 2)):
        assert_answers(got[number], [number])
        assert got[number].generation == Generation(1, step)
    assert idle(replica)


def test_sessions_wait_for_a_staging_buffer_and_requests_stay_queued():
    replica, answers = Device({4: 1.0}), Answers()
    replica.log.hold = threading.Event()
    with group(1, device_stages=1, max_batch_rows=4) as running:
        for number in range(8):
            running.enqueue(answers.work(replica, number, [number] * 4))
        # One tray runs, two are filled, and the session has the fourth batch in hand.
        until(lambda: len(running._stages._batches) == staging_count(1) and running.queue_rows == 16)
        replica.log.hold.set()
        got = answers.wait(8)
    for number in range(8):
        assert_answers(got[number], [number] * 4)


def test_closing_answers_queued_and_filled_requests():
    replica, answers = Device(), Answers()
    replica.log.hold = threading.Event()
    with group(2, device_stages=2, max_batch_rows=4) as running:
        for number in range(40):
            running.enqueue(answers.work(replica, number, [number]))
        threading.Timer(0.05, replica.log.hold.set).start()
    got = answers.wait(40)
    for number in range(40):
        assert_answers(got[number], [number])
    assert not any(thread.is_alive() for thread in running._stages._threads)
    assert idle(replica)


def test_versions_have_own_staging_buffers_freed_with_their_last_request():
    answers = Answers()
    with group(2, device_stages=1) as running:
        replicas = [Device(), Device({1: 1.0, 16: 3.0})]
        for number in range(20):
            running.enqueue(answers.work(replicas[number % 2], number, [number] * (number % 5 + 1)))
        got = answers.wait(20)
        for number in range(20):
            assert_answers(got[number], [number] * (number % 5 + 1))
        gone = [weakref.ref(replica) for replica in replicas]
        for replica in replicas:
            # The fake's own reference to itself.
            replica.plan = replica.graphs = replica.run = None
        del replicas, replica, got
        until(lambda: not any(ref() for ref in gone))


def test_request_larger_than_a_staging_buffer_needs_a_free_reader():
    replica, answers = Device(), Answers()
    with group(1, device_stages=1) as running:
        running._free_readers.clear()
        with pytest.raises(Overloaded, match="too many requests larger than the largest batch"):
            running.enqueue(answers.work(replica, 0, range(5)))
        running.enqueue(answers.work(replica, 1, range(4)))
        assert_answers(answers.wait(1)[1], range(4))


def test_staging_buffer_that_fails_to_open_is_free_again():
    replica, answers = Device(), Answers()
    borrow_buffers, replica.borrow_buffers = replica.borrow_buffers, None
    with group(1, device_stages=1) as running:
        for number in range(2 * staging_count(1)):
            running.enqueue(answers.work(replica, number, [1]))
        got = answers.wait(2 * staging_count(1))
        assert all(isinstance(answer, FreshetError) for answer in got.values())
        replica.borrow_buffers = borrow_buffers
        running.enqueue(answers.work(replica, 99, [1]))
        assert_answers(answers.wait(1)[99], [1])
    assert idle(replica)


def test_resizing_sessions_works_with_device_stages():
    replica, answers = Device(), Answers()
    with group(1, device_stages=1) as running:
        for round_, sessions in enumerate((3, 1, 2)):
            running.resize(sessions)
            for number in range(10):
                running.enqueue(answers.work(replica, round_ * 10 + number, [number]))
        got = answers.wait(30)
        counts = running.counts(replica)
    assert all(isinstance(answer, PredictReply) for answer in got.values())
    assert counts.tolist() == [[30, counts[0, 1]]]


def test_group_has_stages_of_its_own():
    own = {"a": GroupConfig(["a"], device_stages=3), "b": GroupConfig(["b"])}
    plans = plan(SessionConfig(groups=own), frozenset(range(4)), ())
    assert [plans[name][1].device_stages for name in ("a", "b", "default")] == [3, 0, 0]


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.long), 2])
def test_engine_scores_equally_while_deltas_arrive(tmp_path, stages):
    """Requests of many sizes from several threads while deltas of rows and of dense weights are applied: every reply is
    what its own generation gives, to the last row."""
    write_package(tmp_path)
    steps = 6
    # Each delta brings other weights, so that scores tell the generation.
    config = ProcessorConfig(repository=str(tmp_path), sessions=2, device_stages=stages, delta_guard="off")
    with Processor.initialize(config) as processor:
        replies, stop = queue.Queue(), threading.Event()

        def ask(seed):
            random = np.random.default_rng(seed)
            while not stop.is_set():
                inputs = make_inputs(random.integers(0, 25, int(random.integers(1, 50))).tolist(), seed=seed)
                replies.put((inputs, processor.process(PredictRequest("small", inputs))))

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        models = {0: (dict.fromkeys(range(20), 0), make_weights(0))}
        for step in range(1, steps + 1):
            users, weights = models[step - 1]
            changed = range(step, step + 8)
            dense = step if step % 2 else None
            write_delta(tmp_path / "upload", make_delta(step, changed, dense_seed=dense))
            processor.apply_delta("small", data=(tmp_path / "upload").read_bytes())
            models[step] = users | dict.fromkeys(changed, step), make_weights(dense) if dense else weights
            before = replies.qsize()
            # Three threads ask: the fourth reply from here on was asked for after the flip.
            until(lambda before=before: replies.qsize() > before + 3)
        stop.set()
        for thread in threads:
            thread.join()
        stats = processor.host.group_stats()["default"].work
        assert stats.rows == sum(len(inputs["user"]) for inputs, _ in list(replies.queue))
        assert processor.info()["groups"]["default"]["device_stages"] == stages
    seen = set()
    while not replies.empty():
        inputs, reply = replies.get()
        step = reply.generation.step
        users, weights = models[step]
        tags = [["a", "zz", "b", "c"][: u % 5] for u in range(len(inputs["user"]))]
        wanted = reference(users, {tag_id(t): 0 for t in "abc"}, weights, inputs["user"], tags, inputs["floats"])
        np.testing.assert_allclose(reply.outputs["score"][:, 0], wanted, atol=1e-6)
        seen.add(step)
    assert seen == set(range(steps + 1))


def test_engine_with_device_stages_equals_engine_without(tmp_path):
    write_package(tmp_path)
    random = np.random.default_rng(0)
    requests = [
        PredictRequest("small", make_inputs(random.integers(0, 25, n).tolist(), seed=n)) for n in (1, 7, 16, 40, 3, 64)
    ]
    plain, staged = (
        ProcessorConfig(repository=str(tmp_path), sessions=2, device_stages=stages, max_queue_rows=1000)
        for stages in (0, 1)
    )
    with Processor.initialize(plain) as one, Processor.initialize(staged) as other:
        for a, b in zip(one.batch_process(requests), other.batch_process(requests), strict=True):
            np.testing.assert_allclose(a.outputs["score"], b.outputs["score"], atol=1e-6)
        (plain_stats,), (staged_stats,) = model_stats(one.host), model_stats(other.host)
        assert staged_stats.lookups == plain_stats.lookups > 0
        assert other.host.group_stats()["default"].work.rows == one.host.group_stats()["default"].work.rows
