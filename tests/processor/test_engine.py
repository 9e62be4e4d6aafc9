"""The processor as its users see it: opened, answering while everything changes, told about, closed."""

import errno
import gc
import os
import queue
import threading

import numpy as np
import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, FreshetError, NotFound, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import storage as storage_module
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.sessions.group import SESSION_READERS
from freshet_serving.processor.sessions.session_options import GroupConfig
from tests.processor.engines import TIMEOUT_S, USERS, Replies, assert_reply, damage, publish, request, scores
from tests.support.packages import make_delta, write_package


def test_initialize_serves_the_newest_version_and_scores_like_numpy(root, open_processor):
    write_package(root, 3, users=USERS, seed=3)
    reply = open_processor().process(request([0, 5, 19, 20, 10**12, -1]))
    assert_reply(reply, "3.0", scores([0, 5, 19, 20, 10**12, -1], dense_seed=3))
    assert reply.model == "small"


@pytest.mark.parametrize(
    ("options", "scattered"),
    [
        ({"sessions": 3}, {True}),
        ({"sessions": 2}, {True}),
        # More than a batch's rows: in turns with others.
        ({"compute": "inline", "sessions": 1}, {True}),
        # Helpers take shares where they are idle.
        ({"compute": "inline", "sessions": 3}, {True, False}),
    ],
)
def test_every_reply_equals_its_named_generation_during_deltas_and_rollbacks(open_processor, options, scattered):
    processor = open_processor(undo_depth=4, **options)
    # A cost that makes parts of large requests worth their own runs.
    replica = processor.predictor.replica("small")
    replica.graphs.undivided.costs = CostTable({bucket: bucket * 1e-5 for bucket in replica.cost})
    split = []
    pin, replica.pin = replica.pin, lambda reader: (split.append(reader >= SESSION_READERS), pin(reader))[1]
    users = [0, 3, 7, 11, 19, 25, 1] * 40
    one = {step: scores([3], dict.fromkeys(USERS, step), step) for step in range(7)}
    many = {step: scores(users, dict.fromkeys(USERS, step), step) for step in range(7)}
    stop, wrong, seen = threading.Event(), [], set()

    def check(reply, values):
        seen.add(reply.generation.step)
        if not np.allclose(reply.outputs["score"][:, 0], values[reply.generation.step], atol=1e-5):
            wrong.append((reply.generation, reply.outputs["score"]))

    def ask():
        while not stop.is_set():
            small, large = processor.batch_process([request([3]), request(users)])
            check(small, one)
            check(large, many)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        version = processor.host.catalogue["small"].pick()
        for _ in range(6):
            for step in range(version.position.step + 1, 7):
                version.apply(make_delta(step, list(USERS), dense_seed=step))
            version.rollback(4)
            version.rollback(2)
    finally:
        stop.set()
        for asker in askers:
            asker.join(TIMEOUT_S)
    assert not wrong
    assert len(seen) > 1
    assert any(split) in scattered


def test_groups_answer_their_models_and_resize_separately(root, open_processor):
    write_package(root, users=USERS, model="other", seed=9)
    groups = {"baseline": GroupConfig(["small"], sessions=1), "rest": GroupConfig(["*"], sessions=2)}
    processor = open_processor(groups=groups)
    for _ in range(3):
        processor.process(request([1]))
    processor.process(request([1], model="other"))
    stats = processor.host.group_stats()
    assert {name: s.work.requests for name, s in stats.items()} == {"baseline": 3, "rest": 1}
    processor.host.resize(3, "rest")
    assert {name: g["sessions"] for name, g in processor.info()["groups"].items()} == {"baseline": 1, "rest": 3}
    assert processor.info()["sessions"] == 4
    processor.host.resize(1)
    assert {name: s.sessions for name, s in processor.host.group_stats().items()} == {"baseline": 1, "rest": 1}
    with pytest.raises(NotFound, match="group does not exist: 'nobody'; expected one of baseline, rest"):
        processor.host.resize(1, "nobody")


def test_sessions_and_executable_threads_stay_on_their_cores(root, open_processor):
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    groups = {"baseline": GroupConfig(["small"], sessions=1, cpus=str(core), threads_per_session=2)}
    if len(before) == 1:
        with pytest.raises(BadInput, match="no core is left"):
            open_processor(groups=groups)
        return
    processor = open_processor(groups=groups)
    seen = queue.Queue()
    processor.predictor.submit(request([1]), lambda reply: seen.put(os.sched_getaffinity(0)))
    assert seen.get(timeout=TIMEOUT_S) == {core}
    assert os.sched_getaffinity(0) == before
    on_core = [t for t in os.listdir("/proc/self/task") if os.sched_getaffinity(int(t)) == {core}]
    assert len(on_core) >= 2
    (default,) = processor.predictor.groups.of("unknown").options.cpus
    assert default == before - {core}


def session_threads():
    return [t for t in threading.enumerate() if t.name.startswith("freshet-session-")]


def test_unloadable_model_makes_initialize_raise_with_one_line(root):
    damage(write_package(root, users=USERS, model="broken"))
    before = session_threads()
    with pytest.raises(BadInput) as refused:
        Processor.initialize(ProcessorConfig(str(root), sessions=2))
    line = "model 'broken' version 1: dense.safetensors: does not match its checksum"
    assert str(refused.value) == line
    assert session_threads() == before


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(repository="nowhere-at-all"), NotFound, "'nowhere-at-all' is not a folder"),
        (dict(sessions=-1), BadInput, "sessions: expected 0 .one per core. to 1024, got -1"),
        (dict(sessions=1025), BadInput, "sessions: expected 0 .one per core. to 1024, got 1025"),
    ],
)
def test_invalid_configuration_is_refused(root, change, error, message):
    with pytest.raises(error, match=message):
        Processor.initialize(ProcessorConfig(**{"repository": str(root), **change}))


def test_every_call_after_close_raises_closed(root, open_processor):
    processor = open_processor()
    before = set(session_threads())
    processor.close()
    processor.close()
    assert not processor.host.ready
    assert not any(t.is_alive() for t in before)
    for call in (
        lambda: processor.process(request([1])),
        lambda: processor.predictor.submit(request([1]), print),
        lambda: processor.apply_delta("small", data=b""),
        lambda: processor.rollback("small", Generation(1, 0)),
        lambda: processor.predictor.manifest("small"),
        lambda: processor.host.status("small"),
        lambda: processor.host.load("small", 1),
        lambda: processor.host.set_label("small", "a", 1),
    ):
        with pytest.raises(NotReady, match="the processor is closed"):
            call()
    assert all(isinstance(r, NotReady) for r in processor.batch_process([request([1])] * 3))


def test_closing_answers_queued_requests(open_processor):
    processor, replies = open_processor(sessions=1), Replies()
    replies.hold(processor)
    for number in range(10):
        processor.predictor.submit(request([number]), replies.done(number))
    closer = threading.Thread(target=processor.close)
    closer.start()
    replies.release()
    closer.join(TIMEOUT_S)
    for number, reply in replies.wait(10).items():
        assert_reply(reply, "1.0", scores([number]))


def test_manifest_is_returned_with_the_answering_generation(root, open_processor):
    publish(root, 1)
    processor = open_processor()
    manifest, generation = processor.predictor.manifest("small")
    assert (manifest.model, manifest.version, generation) == ("small", 1, Generation(1, 1))
    assert processor.host.models() == ["small"]
    assert [(s.version, s.state, s.error) for s in processor.host.status("small")] == [(1, "AVAILABLE", "")]
    for call in (processor.predictor.manifest, processor.host.status):
        with pytest.raises(NotFound, match="model 'nobody' is not in the repository"):
            call("nobody")


def test_client_messages_contain_no_path(root, open_processor, monkeypatch):
    processor = open_processor()

    def refuse(temporary, path):
        raise OSError(errno.ENOSPC, "no space", str(path))

    monkeypatch.setattr(storage_module, "give_name", refuse)
    path = publish(root, 1)
    data = path.read_bytes()
    path.unlink()
    for call in (
        lambda: processor.apply_delta("small", data=data),
        lambda: processor.apply_delta("small", data=data[:50]),
        lambda: processor.apply_delta("small", path=str(root / "x")),
        lambda: processor.host.load("small", 7),
        lambda: processor.process(request([1], version=7)),
    ):
        with pytest.raises(FreshetError) as refused:
            call()
        assert str(root) not in str(refused.value)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_closing_frees_maps_leases_and_threads_without_the_collector(root):
    write_package(root, 2, users=USERS)
    publish(root, 1, version=2, users=[3], dense_seed=1)
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(4):
            opened = Processor.initialize(ProcessorConfig(str(root), sessions=2))
            opened.process(request([0, 3]))
            opened.close()
            counts.append((descriptors(), *sorted(thread.name for thread in threading.enumerate())))
        # The first one opens what lives as long as the process.
        assert len(set(counts[1:])) == 1, counts
        with pytest.raises(NotReady, match="the processor is closed"):
            opened.process(request([0]))
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_raises_in_place_of_waiting_for_threads(root, open_processor):
    write_package(root, 3, users=USERS)
    opened = open_processor()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = b"nothing"
        try:
            opened.process(request([0]))
        except NotReady as error:
            opened.close()
            said = str(error).encode()
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"the processor was opened by the parent of this process: open one after fork()"
    os.waitpid(child, 0)
    assert opened.process(request([0])).generation.version == 3
