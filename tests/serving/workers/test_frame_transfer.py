"""A version on its way to another process: what arrives is what was meant, and only what is new travels."""

import errno
import os
from base64 import b64decode

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput, Corrupt, NotReady
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository.version import VersionReader, table_file
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.processor.tables.table import ServedTable
from freshet_serving.processor.versions.control import PINS, WORDS, ControlEntry
from freshet_serving.processor.versions.row_scoring import parse_scores
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.serving.workers.array_packing import ArrayUnpacker
from freshet_serving.serving.workers.channel import Channel
from freshet_serving.serving.workers.frame_transfer import FrameReceiver, FrameSender
from tests.support.descriptors import settled_fds
from tests.support.extensions import needs
from tests.support.packages import make_delta, make_inputs, make_weights, reference, tag_id, write_package

USERS = range(12)
PROBE = [0, 5, 11, 12, 40]
TAGS = [["a", "zz", "b", "c"][: u % 5] for u in range(len(PROBE))]
TAG_MODEL = dict.fromkeys([tag_id(t) for t in "abc"], 0)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_package(tmp_path_factory.mktemp("repository"), users=USERS)


def test_damaged_executable_is_omitted_and_refused_on_use(tmp_path):
    folder = write_package(tmp_path)
    reader = VersionReader(folder)
    version = ServedVersion(reader, 4, SystemClock(), processes=1)
    name = "compiled/onnxruntime-cpu/b4.onnx"
    (folder / name).write_bytes(b"damaged")
    sender = FrameSender(reader, version.control)
    message, fds = sender.opening(0)
    assert name not in message["files"]
    assert len(message["files"]) == 2
    with (
        ArrayUnpacker([os.dup(fd) for fd in fds]) as unpacker,
        pytest.raises(Corrupt, match=r"b4\.onnx: does not match"),
    ):
        FrameReceiver(message, unpacker, lambda model: GroupOptions(), SystemClock())


def test_temporarily_unreadable_executable_is_not_treated_as_damaged(tmp_path, monkeypatch):
    reader = VersionReader(write_package(tmp_path))
    version = ServedVersion(reader, 4, SystemClock(), processes=1)

    def short(*_):
        raise OSError(errno.ENOMEM, "injected")

    monkeypatch.setattr("freshet_serving.processor.repository.version.read_file", short)
    with pytest.raises(NotReady, match="cannot be read"):
        FrameSender(reader, version.control)


class Far:
    """Replicas of a version as a worker process would be, messages and descriptors through a real channel."""

    def __init__(self, version, processes):
        self.sender = FrameSender(version.files, version.control)
        self.receivers, self.held, self.brought, self.refusing = [], [frozenset()] * processes, [], set()
        for process in range(processes):
            with self._carried(*self.sender.opening(process)) as (message, unpacker):
                self.receivers.append(FrameReceiver(message, unpacker, lambda model: GroupOptions(), SystemClock()))
        self.cost = {}

    def prepare(self, frame):
        outgoing = self.sender.number(frame)
        for n, receiver in enumerate(self.receivers):
            if n in self.refusing:
                raise BadInput("no")
            with self._carried(*self.sender.message(outgoing, self.held[n])) as (message, unpacker):
                self.brought.append((n, len(message["new"])))
                receiver.prepare(message, unpacker)
            self.held[n] = outgoing.numbers
        self.sender.settle(outgoing)

    def forget(self, frame):
        for receiver in self.receivers:
            receiver.replica.forget(frame)

    def close(self):
        pass

    def _carried(self, message, fds):
        here, there = Channel.pair()
        other = Channel(there)
        here.send(message, fds)
        got, got_fds = other.receive()
        here.close()
        other.close()
        unpacker = ArrayUnpacker(got_fds)

        class Both:
            def __enter__(self):
                return got, unpacker

            def __exit__(self, *error):
                unpacker.__exit__(*error)

        return Both()


def scores(replica, counts=None):
    inputs = make_inputs(PROBE)
    with replica.pinned(3) as state:
        bound = replica.plan.bind_inputs(inputs)
        x, out = np.zeros((16, replica.plan.width), np.float32), np.empty((16, 1), np.float32)
        counts = np.zeros((2, 2), np.int64) if counts is None else counts
        replica.plan.fill(BatchView(state.tables, state.epoch, [bound], np.array([[0, bound.rows]]), counts), x)
        state.executables["score"][16].bind_buffers({"x": x}, {"score": out})()
        return out[: len(PROBE), 0], state.generation


def wanted(users, dense_seed):
    return reference(users, TAG_MODEL, make_weights(dense_seed), PROBE, TAGS, make_inputs(PROBE)["floats"])


def open_far(package, processes=2):
    version = ServedVersion(VersionReader(package), 3, SystemClock(), processes)
    far = Far(version, processes)
    version.attach_replicas(far)
    return version, far


moves = st.lists(
    st.tuples(st.sampled_from(["apply", "apply", "refused", "rollback"]), st.booleans(), st.sets(st.integers(0, 50))),
    max_size=10,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves)
def test_every_process_serves_like_the_writer_after_any_changes(package, moves):
    version, far = open_far(package)
    history = [(0, dict.fromkeys(USERS, 0), 0)]
    for content, (move, with_dense, users) in enumerate(moves, 1):
        step, model, seed = history[-1]
        if move == "rollback":
            if version.as_of(history[max(0, len(history) - 2)][0]) is not None:
                history = history[:-1] or history
                version.rollback(history[-1][0])
        else:
            with_dense |= move == "refused"
            delta = make_delta(step + 1, sorted(users), tag=content, dense_seed=content if with_dense else None)
            if move == "refused":
                far.refusing = {1}
                with pytest.raises(BadInput):
                    version.apply(delta)
                far.refusing = set()
            else:
                version.apply(delta)
                after = model | dict.fromkeys(users, content)
                history.append((step + 1, after, content if with_dense else seed))
        step, model, seed = history[-1]
        for receiver in far.receivers:
            got, generation = scores(receiver.replica)
            assert generation == Generation(1, step)
            np.testing.assert_allclose(got, wanted(model, seed), atol=1e-5)


def test_frame_contains_only_new_arrays_and_row_deltas_none(package):
    version, far = open_far(package, 1)
    first = far.brought[-1][1]
    version.apply(make_delta(1, [1, 2]))
    version.apply(make_delta(2, [3], dense_seed=1))
    version.apply(make_delta(3, [4]))
    version.rollback(2)
    assert [count for _, count in far.brought[1:]] == [len(version.dense)]
    assert first == sum(len(t.arrays) for t in version.tables.values()) + len(version.dense)


def test_rows_are_shared_in_place_and_read_only(package):
    version, far = open_far(package, 1)
    arrays = far.receivers[0]._arrays.values()
    assert not any(a.flags.writeable for a in arrays)
    table = version.tables["user"].arrays
    mine = next(a for a in arrays if a.shape == table["arena"].shape and a.dtype == table["arena"].dtype)
    version.apply(make_delta(1, [0], tag=9))
    np.testing.assert_array_equal(mine[:4], table["arena"][:4])
    assert mine.any()


def test_budgeted_tables_are_read_and_counted_across_processes(package, tmp_path):
    reader = VersionReader(package)
    version = ServedVersion(reader, 0, SystemClock())
    spec, files = version.manifest.tables[0], reader.tensors(table_file("user"))
    table = version.tables["user"] = ServedTable(spec, files, budget_nbytes=200, scratch=tmp_path)
    version.change = version._next(version.generation, 0, version.dense)
    version.control.publish(version.change.publish_seq, ControlEntry(0, 0, version.change.frame.number))
    far = Far(version, 1)
    version.attach_replicas(far)
    prepared = far.receivers[0].replica._frames[version.change.frame.number]
    assert [a.keys() for a in prepared.arrays] == [t.arrays.keys() for t in version.tables.values()]
    counts = np.zeros((2, 2), np.int64)
    for step in range(1, 30):
        version.apply(make_delta(step, USERS, tag=step))
        for _ in range(20):
            got, generation = scores(far.receivers[0].replica, counts)
        table.maintain(version.change.publish_seq, version.change.publish_seq + 1, step)
        assert generation == Generation(1, step)
        np.testing.assert_allclose(got, wanted(dict.fromkeys(USERS, step), 0), atol=1e-5)
    assert table._tier._log._live.any(), "rows were read from the log"
    assert table.tier.hot_lookups + table.tier.cold_lookups > 0, "and counted there"


def test_grown_index_is_sent_and_the_old_one_released(package):
    version, far = open_far(package, 1)
    before = len(version.tables["user"].arrays["index"])
    held = len(far.receivers[0]._arrays)
    version.apply(make_delta(1, range(1000, 1200), tag=2))
    assert len(version.tables["user"].arrays["index"]) > before
    assert far.brought[-1][1] == 1
    assert len(far.receivers[0]._arrays) == held
    got, _ = scores(far.receivers[0].replica)
    np.testing.assert_allclose(got, wanted(dict.fromkeys(USERS, 0), 0), atol=1e-5)


def test_each_process_pins_in_its_own_words(package):
    version, far = open_far(package)
    with far.receivers[1].replica.pinned(7):
        assert version.control.oldest_pin() == version.change.publish_seq
        assert version.control.words[PINS + WORDS + 7] == version.change.publish_seq


def test_descriptors_do_not_accumulate(package):
    version, _ = open_far(package, 1)
    version.apply(make_delta(1, [1], dense_seed=1))
    version.apply(make_delta(2, [1], dense_seed=2))
    before = settled_fds()
    for step in range(3, 20):
        version.apply(make_delta(step, [1], dense_seed=step))
    # What a message brought is part of a cycle; the undo log keeps the tensors of three deltas.
    assert settled_fds() <= before + 8


@needs("guard")
def test_kept_requests_are_scored_in_another_process(package):
    _, far = open_far(package, 2)
    first, second = far.receivers
    inputs = make_inputs([1, 2, 3])
    first.replica.sample.take(first.replica.plan.bind_inputs(inputs), inputs)
    kept = first.kept()
    second.remember({"requests": kept})
    assert second.kept() == kept
    scores = parse_scores(b64decode(second.score({"requests": kept, "seconds": 60.0})))
    assert scores.scored.all()
    assert scores.outputs["score"].shape == (3, 1)
