"""The processor as its users see it: what it answers, by which generation, and what it refuses."""

import os
import queue
import threading
import time
import weakref

import numpy as np
import pytest

from processor.backends.cost import CostTable
from processor.clock import FakeClock
from processor.columns import Ragged, Strings
from processor.engine import PredictReply, PredictRequest, Processor, ProcessorConfig
from processor.errors import (
    BadInput,
    Conflict,
    Corrupt,
    Expired,
    FreshetError,
    NotFound,
    NotReady,
    Overloaded,
)
from processor.generation import Generation
from processor.package import repository as repository_module
from processor.package.delta import write_delta
from processor.package.repository import Repository
from processor.sessions.group import HOLDS
from processor.sessions.session_options import GroupConfig
from processor.versions.routes import VersionStatus
from tests.packages import make_delta, make_inputs, make_weights, reference, tag_id, write_package

USERS = range(20)
TAGS = [["a", "zz", "b", "c"][: u % 5] for u in range(5000)]
LONG_AGO_S = 1_600_000_000
TIMEOUT_S = 30


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    return tmp_path / "repository"


@pytest.fixture
def open_processor(root):
    opened = []

    def build(clock=None, **config):
        config = {"repository": str(root), "sessions": 2} | config
        opened.append(Processor.initialize(ProcessorConfig(**config), clock))
        return opened[-1]

    yield build
    for processor in opened:
        processor.close()


def request(users, model="small", seed=0, **more):
    return PredictRequest(model, make_inputs(users, seed=seed), **more)


def scores(users, content=None, dense_seed=0, seed=0, tags=None):
    """By plain numpy. content: user -> content number, beside the full version's."""
    model = dict.fromkeys(USERS, 0) | (content or {})
    model = {user: tag for user, tag in model.items() if tag is not None}
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0) | (tags or {})
    floats = make_inputs(users, seed=seed)["floats"]
    return reference(model, tag_model, make_weights(dense_seed), users, TAGS, floats)


def assert_reply(reply, generation, wanted):
    assert isinstance(reply, PredictReply), reply
    assert str(reply.generation) == generation
    assert reply.outputs.keys() == {"score"}
    assert reply.outputs["score"].dtype == np.float32
    assert reply.outputs["score"].shape == (len(wanted), 1)
    np.testing.assert_allclose(reply.outputs["score"][:, 0], wanted, atol=1e-5)


def publish(root, step, users=(0,), version=1, **changes):
    path = root / "small" / str(version) / "deltas" / f"{step}.safetensors"
    write_delta(path, make_delta(step, users, version=version, **changes))
    return path


def damage(folder):
    path = folder / "dense.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


class Replies:
    """Collects done() calls; gate(): one whose done() holds its session until release()."""

    def __init__(self):
        self.calls, self.threads, self._changed = [], [], threading.Condition()
        self._gate, self._inside = threading.Event(), threading.Semaphore(0)

    def done(self, number):
        def call(reply):
            with self._changed:
                self.calls.append((number, reply))
                self.threads.append(threading.current_thread().name)
                self._changed.notify_all()

        return call

    def hold(self, processor):
        """Returns when one session is inside a callback that ends with release()."""

        def call(reply):
            self._inside.release()
            self._gate.wait(TIMEOUT_S)

        processor.submit(request([1]), call)
        assert self._inside.acquire(timeout=TIMEOUT_S)

    def release(self):
        self._gate.set()

    def wait(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, TIMEOUT_S)
            return dict(self.calls)


# Scores


def test_initialize_serves_the_newest_version_and_scores_as_plain_numpy_does(root, open_processor):
    write_package(root, 3, users=USERS, seed=3)
    reply = open_processor().process(request([0, 5, 19, 20, 10**12, -1]))
    assert_reply(reply, "3.0", scores([0, 5, 19, 20, 10**12, -1], dense_seed=3))
    assert reply.model == "small"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 15, 16, 17, 33, 255, 256, 257, 1000])
def test_a_request_of_any_size_is_answered_in_order(open_processor, rows):
    users = [n % 30 for n in range(rows)]
    assert_reply(open_processor().process(request(users)), "1.0", scores(users))


def test_one_user_is_broadcast_to_all_candidates(open_processor):
    floats = make_inputs(range(40))["floats"]
    inputs = {
        "user": np.array([7]),
        "tags": Ragged(Strings.of(["b", "c"]), np.array([0, 2])),
        "floats": floats,
    }
    reply = open_processor().process(PredictRequest("small", inputs))
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0)
    wanted = reference({7: 0}, tag_model, make_weights(0), [7] * 40, [["b", "c"]] * 40, floats)
    assert_reply(reply, "1.0", wanted)


def test_a_batch_mixes_replies_and_errors_each_in_its_place(open_processor):
    requests = [
        request([1, 2]),
        request([1], model="nobody"),
        request([3], seed=5),
        PredictRequest("small", {"user": np.array([1])}),
        request([4], timeout_s=0.0),
        request([5], version=9),
        request(range(300)),
    ]
    replies = open_processor().batch_process(requests)
    assert_reply(replies[0], "1.0", scores([1, 2]))
    assert_reply(replies[2], "1.0", scores([3], seed=5))
    assert_reply(replies[6], "1.0", scores(range(300)))
    kinds = [type(r) for r in replies]
    assert kinds == [PredictReply, NotFound, PredictReply, BadInput, Expired, NotFound, PredictReply]
    assert open_processor().batch_process([]) == []


def test_requests_of_two_models_in_one_batch_do_not_mix(root, open_processor):
    write_package(root, users=USERS, model="other", seed=9)
    replies = open_processor(sessions=1).batch_process(
        [request([n], model=m) for n in range(5) for m in ("small", "other")]
    )
    for n in range(5):
        assert_reply(replies[2 * n], "1.0", scores([n]))
        assert_reply(replies[2 * n + 1], "1.0", scores([n], dense_seed=9))
    assert [r.model for r in replies[:2]] == ["small", "other"]


def test_done_is_called_once_for_each_request_on_a_session_thread(open_processor):
    processor, replies = open_processor(), Replies()
    for number in range(50):
        processor.submit(request([number]), replies.done(number))
    got = replies.wait(50)
    assert sorted(n for n, _ in replies.calls) == list(range(50))
    for number, reply in got.items():
        assert_reply(reply, "1.0", scores([number]))
    assert all(name.startswith("freshet-session-") for name in replies.threads)


def test_an_invalid_request_raises_at_once_and_done_is_never_called(open_processor):
    processor, replies = open_processor(), Replies()
    for bad, error in [
        (request([1], model="x" * 1000), NotFound),
        (request([1], label="stable"), NotFound),
        (request([1], version=2), NotFound),
        (PredictRequest("small", {}), BadInput),
    ]:
        with pytest.raises(error) as refused:
            processor.submit(bad, replies.done(0))
        assert len(str(refused.value)) < 200
    processor.process(request([1]))
    assert replies.calls == []


def test_a_request_whose_deadline_passes_in_the_queue_expires(open_processor):
    clock, replies = FakeClock(), Replies()
    processor = open_processor(clock, sessions=1)
    replies.hold(processor)
    processor.submit(request([1], timeout_s=1.0), replies.done("short"))
    processor.submit(request([2], timeout_s=60.0), replies.done("long"))
    processor.submit(request([3]), replies.done("patient"))
    clock.advance(2.0)
    replies.release()
    got = replies.wait(3)
    assert isinstance(got["short"], Expired)
    assert_reply(got["long"], "1.0", scores([2]))
    assert_reply(got["patient"], "1.0", scores([3]))


def test_a_timeout_of_zero_is_always_too_late(open_processor):
    with pytest.raises(Expired, match="deadline passed"):
        open_processor().process(request([1], timeout_s=0.0))


def test_a_full_queue_sheds_and_answers_what_it_holds(open_processor):
    processor, replies = open_processor(sessions=1, max_queue_rows=10), Replies()
    replies.hold(processor)
    processor.submit(request(range(6)), replies.done(0))
    with pytest.raises(Overloaded):
        processor.submit(request(range(6)), replies.done(1))
    replies.release()
    assert_reply(replies.wait(1)[0], "1.0", scores(range(6)))


# Deltas


def test_a_delta_in_the_folder_is_served_after_a_poll(root, open_processor):
    processor = open_processor()
    publish(root, 1, [1, 500], removed=[2], tags=["zz"], tag=3, dense_seed=4)
    assert processor.poll() == ["small 1.1 served"]
    wanted = scores([0, 1, 2, 500], {1: 3, 500: 3, 2: None}, dense_seed=4, tags={tag_id("zz"): 3})
    assert_reply(processor.process(request([0, 1, 2, 500])), "1.1", wanted)
    assert processor.poll() == []


def test_an_uploaded_delta_is_served_when_the_call_returns_and_after_a_restart(root, open_processor, tmp_path):
    write_delta(tmp_path / "upload", make_delta(1, [1], tag=6))
    processor = open_processor()
    applied = processor.apply_delta("small", data=(tmp_path / "upload").read_bytes())
    assert (applied.model, applied.generation, applied.rows, applied.removed) == (
        "small",
        Generation(1, 1),
        1,
        0,
    )
    for opened in (processor, open_processor()):
        assert_reply(opened.process(request([1, 2])), "1.1", scores([1, 2], {1: 6}))


def test_a_delta_by_path_is_served_relative_or_absolute(root, open_processor):
    processor = open_processor()
    publish(root, 1, [1], tag=1)
    publish(root, 2, [2], tag=2).rename(root / "upload")
    assert processor.apply_delta("small", path="small/1/deltas/1.safetensors").generation == Generation(1, 1)
    assert processor.apply_delta("small", path="small/1/deltas/1.safetensors").generation == Generation(1, 1)
    assert processor.apply_delta("small", path=str(root / "upload")).generation == Generation(1, 2)
    (root / "upload").unlink()
    for opened in (processor, open_processor()):
        assert_reply(opened.process(request([1, 2])), "1.2", scores([1, 2], {1: 1, 2: 2}))


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "small/../../secret", "nowhere", "small", "", "a" * 300])
def test_a_path_outside_the_repository_is_not_found(root, open_processor, path):
    write_delta(root.parent / "secret", make_delta(1, [1]))
    processor = open_processor()
    with pytest.raises(NotFound, match="a file inside the repository wanted"):
        processor.apply_delta("small", path=path)
    assert_reply(processor.process(request([1])), "1.0", scores([1]))


def test_a_delta_that_is_refused_says_why_and_changes_nothing(root, open_processor):
    processor = open_processor()
    data = publish(root, 2, [1]).read_bytes()
    for arguments, error, message in [
        (dict(model="nobody", data=data), NotFound, "model 'nobody' is not in the repository"),
        (dict(model="small"), BadInput, "either the file itself or a path wanted"),
        (dict(model="small", data=data, path="x"), BadInput, "either the file itself or a path wanted"),
        (dict(model="small", data=data), Conflict, "continues step 1, the served generation is 1.0"),
        (dict(model="small", data=data[:-1]), Corrupt, "delta: "),
        (dict(model="small", path="small/1/model.json"), Corrupt, "delta: "),
    ]:
        with pytest.raises(error, match=message):
            processor.apply_delta(**arguments)
    assert_reply(processor.process(request([1])), "1.0", scores([1]))


def test_a_broken_delta_in_the_folder_does_not_stop_the_server(root, open_processor):
    processor = open_processor()
    path = publish(root, 1, [1], tag=6)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    assert len(processor.poll()) == 1
    assert processor.poll() == []
    assert_reply(processor.process(request([1])), "1.0", scores([1]))
    path.with_name("tmp").write_bytes(good)
    os.replace(path.with_name("tmp"), path)
    assert processor.poll() == ["small 1.1 served"]
    assert_reply(processor.process(request([1])), "1.1", scores([1], {1: 6}))


@pytest.mark.parametrize("undo_depth", [16, 1])
def test_a_rollback_is_served_at_once_and_after_a_restart(root, open_processor, undo_depth):
    for step in (1, 2, 3):
        publish(root, step, [step], tag=step, dense_seed=step)
    processor = open_processor(undo_depth=undo_depth)
    assert_reply(processor.process(request([1, 2, 3])), "1.3", scores([1, 2, 3], {1: 1, 2: 2, 3: 3}, 3))
    assert processor.rollback("small", Generation(1, 1)) == Generation(1, 1)
    for opened in (processor, open_processor()):
        assert_reply(opened.process(request([1, 2, 3])), "1.1", scores([1, 2, 3], {1: 1}, 1))
        assert opened.poll() == []
    with pytest.raises(Conflict, match="a generation before"):
        processor.rollback("small", Generation(1, 3))


@pytest.mark.parametrize("options", [{"sessions": 3}, {"sessions": 2, "policy": "least-loaded"}, {"compute": "inline"}])
def test_every_reply_is_exactly_the_generation_that_it_names_while_deltas_and_rollbacks_run(open_processor, options):
    processor = open_processor(undo_depth=4, **options)
    # A cost that makes parts of large requests worth their own runs.
    replica = processor.replica("small")
    replica.costs = CostTable({bucket: bucket * 1e-5 for bucket in replica.cost})
    split = []
    pin, replica.pin = replica.pin, lambda reader: (split.append(reader >= HOLDS), pin(reader))[1]
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
        version = processor._models["small"].pick()
        for _ in range(6):
            for step in range(version.chain.step + 1, 7):
                version.apply(make_delta(step, list(USERS), dense_seed=step))
            version.rollback(4)
            version.rollback(2)
    finally:
        stop.set()
        for asker in askers:
            asker.join(TIMEOUT_S)
    assert not wrong
    assert len(seen) > 1
    assert any(split) == ("sessions" in options)


def test_inline_the_thread_that_waits_computes_whatever_waits(open_processor):
    processor, replies = open_processor(compute="inline"), Replies()
    processor.submit(request([4]), replies.done("before"))
    assert not replies.calls
    assert_reply(processor.process(request([1, 2])), "1.0", scores([1, 2]))
    assert_reply(replies.wait(1)["before"], "1.0", scores([4]))
    assert replies.threads == [threading.current_thread().name]


def test_inline_many_threads_may_wait_at_once(open_processor):
    processor, wrong = open_processor(compute="inline"), []

    def ask(number):
        for _ in range(20):
            reply = processor.process(request([number]))
            if not np.allclose(reply.outputs["score"][:, 0], scores([number]), atol=1e-5):
                wrong.append(number)

    askers = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(TIMEOUT_S)
        assert not asker.is_alive()
    assert not wrong


def test_inline_an_owner_computes_in_its_thread_whoever_asks(open_processor):
    processor, calls, threads = open_processor(compute="inline"), queue.Queue(), []

    def own():
        assert processor.attach(calls.put)
        while calls.get() is not None:
            threads.append(threading.get_ident())
            processor.run_once()

    owner = threading.Thread(target=own)
    owner.start()
    while processor._groups.inline.driven:
        time.sleep(0.001)
    assert_reply(processor.process(request([7])), "1.0", scores([7]))
    calls.put(None)
    owner.join(TIMEOUT_S)
    assert set(threads) == {owner.ident}


# Groups


def test_models_are_answered_by_their_groups_and_a_resize_is_of_one(root, open_processor):
    write_package(root, users=USERS, model="other", seed=9)
    groups = {"baseline": GroupConfig(["small"], sessions=1), "rest": GroupConfig(["*"], sessions=2, policy="mod")}
    processor = open_processor(groups=groups)
    for _ in range(3):
        processor.process(request([1]))
    processor.process(request([1], model="other"))
    stats = processor.group_stats()
    assert {name: s.work.requests for name, s in stats.items()} == {"baseline": 3, "rest": 1}
    processor.resize(3, "rest")
    assert {name: g["sessions"] for name, g in processor.info()["groups"].items()} == {"baseline": 1, "rest": 3}
    assert processor.info()["sessions"] == 4
    processor.resize(1)
    assert {name: s.sessions for name, s in processor.group_stats().items()} == {"baseline": 1, "rest": 1}
    with pytest.raises(NotFound, match="group 'nobody' is not one of baseline, rest"):
        processor.resize(1, "nobody")


def test_sessions_and_the_threads_of_their_executables_stay_on_their_cores(root, open_processor):
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    groups = {"baseline": GroupConfig(["small"], sessions=1, cpus=str(core), threads_per_session=2)}
    if len(before) == 1:
        with pytest.raises(BadInput, match="no core is left"):
            open_processor(groups=groups)
        return
    processor = open_processor(groups=groups)
    seen = queue.Queue()
    processor.submit(request([1]), lambda reply: seen.put(os.sched_getaffinity(0)))
    assert seen.get(timeout=TIMEOUT_S) == {core}
    assert os.sched_getaffinity(0) == before
    on_core = [t for t in os.listdir("/proc/self/task") if os.sched_getaffinity(int(t)) == {core}]
    assert len(on_core) >= 2
    (default,) = processor._groups.of("unknown").options.cpus
    assert default == before - {core}


# Versions


def test_a_new_version_takes_over_and_requests_queued_for_the_old_one_are_still_answered(root, open_processor):
    processor, replies = open_processor(sessions=1), Replies()
    replies.hold(processor)
    processor.submit(request([1]), replies.done("old"))
    write_package(root, 2, users=USERS, seed=2)
    assert processor.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    processor.submit(request([1]), replies.done("new"))
    replies.release()
    got = replies.wait(2)
    assert_reply(got["old"], "1.0", scores([1]))
    assert_reply(got["new"], "2.0", scores([1], dense_seed=2))


def test_a_version_that_is_served_no_more_is_freed_with_its_last_batch(root, open_processor):
    processor, gone = open_processor(), threading.Event()
    processor.batch_process([request([n]) for n in range(20)])
    weakref.finalize(processor._models["small"].pick(), gone.set)
    write_package(root, 2, users=USERS)
    processor.poll()
    assert gone.wait(TIMEOUT_S)
    assert_reply(processor.process(request([1])), "2.0", scores([1]))


def test_requests_may_name_a_version_or_a_label(root, open_processor):
    write_package(root, 2, users=USERS, seed=2)
    processor = open_processor()
    processor.load("small", 1)
    processor.set_label("small", "stable", 1)
    processor.set_label("small", "canary", 2)
    assert_reply(processor.process(request([1], version=1)), "1.0", scores([1]))
    assert_reply(processor.process(request([1], label="canary")), "2.0", scores([1], dense_seed=2))
    assert_reply(processor.process(request([1])), "2.0", scores([1], dense_seed=2))
    with pytest.raises(Conflict, match="held by label stable"):
        processor.unload("small", 1)
    reopened = open_processor()
    assert_reply(reopened.process(request([1], label="stable")), "1.0", scores([1]))
    processor.set_label("small", "stable", 2)
    processor.unload("small", 1)
    with pytest.raises(NotFound, match="version 1 of model 'small' is not loaded"):
        processor.process(request([1], version=1))


def test_a_model_whose_folder_was_empty_at_first_is_served_once_a_version_is_there(root, open_processor):
    (root / "late").mkdir()
    for folder in (root, root / "late"):
        os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    processor = open_processor()
    assert processor.poll() == []
    write_package(root, users=USERS, model="late", seed=5)
    os.utime(root, (LONG_AGO_S, LONG_AGO_S))
    assert processor.poll() == ["late 1.0 loaded"]
    assert_reply(processor.process(request([1], model="late")), "1.0", scores([1], dense_seed=5))
    assert processor.poll() == []


def test_a_new_model_is_served_and_one_that_cannot_be_loaded_disturbs_nobody(root, open_processor):
    processor = open_processor()
    damage(write_package(root, users=USERS, model="a-broken"))
    write_package(root, users=USERS, model="good", seed=5)
    publish(root, 1, [1], tag=1)
    assert sorted(processor.poll()) == [
        "a-broken version 1 refused: dense.safetensors: does not match its checksum",
        "good 1.0 loaded",
        "small 1.1 served",
    ]
    assert processor.ready
    assert_reply(processor.process(request([1], model="good")), "1.0", scores([1], dense_seed=5))
    with pytest.raises(NotReady, match="no version of model 'a-broken' is loaded"):
        processor.process(request([1], model="a-broken"))


def test_a_model_behind_a_link_that_leads_out_disturbs_nobody(root, open_processor):
    outside = write_package(root.parent / "outside", users=USERS, model="evil").parent
    processor = open_processor()
    (root / "evil").symlink_to(outside)
    publish(root, 1, [1], tag=1)
    assert sorted(processor.poll()) == [
        "evil version 1 refused: path: a file inside the repository wanted",
        "small 1.1 served",
    ]


def test_a_poll_lists_no_folder_while_nothing_changes(root, open_processor, monkeypatch):
    processor = open_processor()
    for folder in (root, root / "small", root / "small" / "1" / "deltas"):
        os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    processor.poll()
    monkeypatch.setattr(repository_module.os, "scandir", lambda path: pytest.fail("a folder was listed"))
    assert processor.poll() == []


# Starting and stopping


def test_only_the_models_that_were_asked_for_are_served(root, open_processor):
    write_package(root, users=USERS, model="other")
    damage(write_package(root, users=USERS, model="third"))
    processor = open_processor(models=["other"])
    assert processor.models() == ["other"]
    with pytest.raises(NotFound):
        processor.process(request([1]))


def session_threads():
    return [t for t in threading.enumerate() if t.name.startswith("freshet-session-")]


def test_a_model_that_cannot_load_makes_initialize_raise_with_one_clear_line(root):
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
        (dict(sessions=-1), BadInput, "sessions: 0 .one per core. to 1024 wanted, got -1"),
        (dict(sessions=1025), BadInput, "sessions: 0 .one per core. to 1024 wanted, got 1025"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(root, change, error, message):
    with pytest.raises(error, match=message):
        Processor.initialize(ProcessorConfig(**{"repository": str(root), **change}))


def test_an_empty_repository_is_open_for_models_to_come(tmp_path):
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        assert processor.models() == []
        assert processor.catalogue == {}
        write_package(tmp_path, users=USERS)
        assert processor.poll() == ["small 1.0 loaded"]
        assert processor.ready


def test_after_close_every_call_says_that_it_is_closed(root, open_processor):
    processor = open_processor()
    before = set(session_threads())
    processor.close()
    processor.close()
    assert not processor.ready
    assert not any(t.is_alive() for t in before)
    for call in (
        lambda: processor.process(request([1])),
        lambda: processor.submit(request([1]), print),
        lambda: processor.apply_delta("small", data=b""),
        lambda: processor.rollback("small", Generation(1, 0)),
        lambda: processor.manifest("small"),
        lambda: processor.status("small"),
        lambda: processor.load("small", 1),
        lambda: processor.set_label("small", "a", 1),
    ):
        with pytest.raises(NotReady, match="the processor is closed"):
            call()
    assert all(isinstance(r, NotReady) for r in processor.batch_process([request([1])] * 3))


def test_closing_answers_what_is_queued(open_processor):
    processor, replies = open_processor(sessions=1), Replies()
    replies.hold(processor)
    for number in range(10):
        processor.submit(request([number]), replies.done(number))
    closer = threading.Thread(target=processor.close)
    closer.start()
    replies.release()
    closer.join(TIMEOUT_S)
    for number, reply in replies.wait(10).items():
        assert_reply(reply, "1.0", scores([number]))


# What it tells


def test_the_manifest_comes_with_the_generation_that_answers(root, open_processor):
    publish(root, 1)
    processor = open_processor()
    manifest, generation = processor.manifest("small")
    assert (manifest.model, manifest.version, generation) == ("small", 1, Generation(1, 1))
    assert processor.models() == ["small"]
    assert [(s.version, s.state, s.error) for s in processor.status("small")] == [(1, "AVAILABLE", "")]
    for call in (processor.manifest, processor.status):
        with pytest.raises(NotFound, match="model 'nobody' is not in the repository"):
            call("nobody")


def test_messages_to_clients_carry_no_path(root, open_processor, monkeypatch):
    processor = open_processor()
    monkeypatch.setattr(Repository, "keep_delta", lambda *_: (_ for _ in ()).throw(NotReady("delta: cannot be kept")))
    path = publish(root, 1)
    data = path.read_bytes()
    path.unlink()
    for call in (
        lambda: processor.apply_delta("small", data=data),
        lambda: processor.apply_delta("small", data=data[:50]),
        lambda: processor.apply_delta("small", path=str(root / "x")),
        lambda: processor.load("small", 7),
        lambda: processor.process(request([1], version=7)),
    ):
        with pytest.raises(FreshetError) as refused:
            call()
        assert str(root) not in str(refused.value)


def test_a_processor_is_ready_when_every_model_that_was_named_is(root, open_processor):
    processor = open_processor(models=["small", "later"])
    assert not processor.ready
    assert processor.process(request([1])).generation == Generation(1, 0)
    write_package(root, users=USERS, model="later")
    processor.poll()
    assert processor.ready


def test_a_model_that_is_added_later_and_broken_leaves_the_processor_ready(root, open_processor):
    processor = open_processor()
    damage(write_package(root, users=USERS, model="later"))
    processor.poll()
    assert processor.ready


def test_a_version_that_is_told_of_is_listed_by_its_state_until_it_is_there(root, open_processor):
    processor = open_processor()
    processor.tell("small", VersionStatus(7, "LOADING"))
    processor.tell("new", VersionStatus(1, "END", "source: variables are missing"))

    assert processor.status("small")[0] == VersionStatus(7, "LOADING")
    assert processor.status("new") == [VersionStatus(1, "END", "source: variables are missing")]
    assert processor.ready
    with pytest.raises(NotReady):
        processor.process(PredictRequest("new", {}))

    processor.tell("small", VersionStatus(1, "LOADING"))
    assert processor.status("small")[-1] == VersionStatus(1, "AVAILABLE")
    write_package(root, version=1, model="new")
    assert processor.poll() == ["new 1.0 loaded"]
    assert processor.status("new") == [VersionStatus(1, "AVAILABLE")]
