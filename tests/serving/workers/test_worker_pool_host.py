"""The supervisor's side of a change: asked of all, flipped after all, whatever dies or refuses on the way."""

import dataclasses
import gc
import os
import threading
import weakref
from base64 import b64encode

import numpy as np
import pytest

from freshet_serving.processor.counter_block import Slot
from freshet_serving.processor.errors import BadInput, NotFound, NotReady
from freshet_serving.processor.extensions.trials.canary_judge import CanaryEvidence
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository import FolderWatch
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.versions.control import IDLE, PINS
from freshet_serving.processor.versions.erasure import ErasedUser
from freshet_serving.processor.versions.overview import model_stats
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.versions.row_scoring import dump_scores
from freshet_serving.processor.watching import RequestScores
from freshet_serving.processor.watching.sketch import Sketch, StatsBlock
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.workers import worker_pool_host as host_module
from freshet_serving.serving.workers.counter_layout import COUNTED, CounterWriter
from freshet_serving.serving.workers.worker_counts import PLANNED, evidence_key, observed
from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost
from tests.serving.workers.fakes import FakeFleet, FakeWorker
from tests.support.extensions import needs
from tests.support.leases import unleased
from tests.support.packages import make_delta, write_package
from tests.support.waiting import until

USERS = range(6)
WAIT_S = 30

READS, CACHE = Slot("toy", "reads"), Slot("toy", "cache", gauge=True)


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path / "repository", users=USERS)
    return tmp_path / "repository"


@pytest.fixture
def hosts(root, monkeypatch):
    """Makes (host, workers): that many introduced before the models are loaded."""
    monkeypatch.setattr(host_module, "ABSENCE_TIMEOUT_S", 0.05)
    opened = []

    def make(count=2):
        worker_pool = FakeFleet(max(count, 2))
        host = WorkerPoolHost(ServeConfig(str(root), model={"small": {"bake_s": 0}}), worker_pool, lambda: b"metrics")
        opened.append(host)
        workers = [FakeWorker(n) for n in range(count)]
        for worker in workers:
            host.initialize_worker(worker)
        return host, workers

    yield make
    for host in opened:
        host.close()


@pytest.fixture
def loaded(hosts):
    """(host, workers) with two workers, once the models are loaded."""
    host, workers = hosts()
    host.load_all()
    return host, workers


def last(worker):
    """Return the last message to a worker; reports are asked for at intervals."""
    return next((op, message) for op, message in reversed(worker.said) if op != "report")


def version_of(host):
    return host.model("small").pick()


def delta(tmp_path, step, **changes):
    path = tmp_path / "made.safetensors"
    write_delta(path, make_delta(step, [1, 2], **changes))
    return path.read_bytes()


def test_every_worker_has_a_version_before_it_is_routed(loaded):
    host, workers = loaded
    host.opened()
    key = version_of(host).replicas.key
    for worker in workers:
        names = [
            (op, key in [k for model in m.get("models", {}).values() for k in model["served"].values()])
            for op, m in worker.said
        ]
        assert names.index(("open", False)) < names.index(("frame", False)) < names.index(("routes", True))
        routes = last(worker)[1]
        assert (routes["loaded"], routes["ready"], routes["draining"]) == (True, True, False)
        assert routes["models"]["small"]["states"] == [[1, "AVAILABLE", ""]]


def test_flip_follows_the_preparation_by_every_worker(loaded, tmp_path, monkeypatch):
    host, _ = loaded
    version = version_of(host)
    seen, ask = [], FakeWorker.ask

    def watched(self, op, message=None, fds=()):
        if op != "report":
            seen.append((op, self.slot, version.control.publish_seq))
        return ask(self, op, message, fds)

    monkeypatch.setattr(FakeWorker, "ask", watched)
    host.apply_delta("small", delta(tmp_path, 1, dense_seed=1))
    assert seen == [("frame", 0, 0), ("frame", 1, 0), ("preview", 0, 0)]
    assert version.control.publish_seq == 1


def test_row_delta_sends_only_previews_to_workers(loaded, tmp_path):
    def told():
        return [[op for op, *_ in worker.said if op not in ("preview", "report")] for worker in workers]

    host, workers = loaded
    before = told()
    for step in range(1, 4):
        host.apply_delta("small", delta(tmp_path, step))
    host.rollback("small", Generation(1, 2))
    assert told() == before
    assert version_of(host).control.entry(version_of(host).control.publish_seq).step == 2


def test_refusal_by_one_worker_refuses_the_delta(loaded, tmp_path):
    host, workers = loaded
    workers[1].refuse = BadInput("cannot pack it")
    with pytest.raises(BadInput, match="cannot pack it"):
        host.apply_delta("small", delta(tmp_path, 1, dense_seed=3))
    assert version_of(host).generation == Generation(1, 0)
    assert version_of(host).control.publish_seq == 0
    workers[1].refuse = None
    host.apply_delta("small", delta(tmp_path, 1, dense_seed=4))
    assert version_of(host).generation == Generation(1, 1)
    brought = [len(m["new"]) for op, m in workers[1].said if op == "frame"]
    assert brought[1] == brought[2] > 0, "what it refused it does not hold"


def test_worker_that_dies_while_preparing_is_reaped_before_the_flip(loaded, tmp_path):
    host, workers = loaded
    version = version_of(host)
    key = version.replicas.key
    workers[0].pin(key, 0)
    workers[0].dies_at = "frame"
    host.apply_delta("small", delta(tmp_path, 1, dense_seed=1))
    assert workers[0].killed
    assert version.generation == Generation(1, 1)
    assert (version.control.words[PINS:] == IDLE).all(), "its pins are taken back, or nobody could reclaim a row"
    assert workers[1].ops("frame")[-1] == ("frame", key, 1)


def test_without_workers_a_frame_is_refused_and_rows_are_accepted(loaded, tmp_path, root):
    host, workers = loaded
    for worker in workers:
        worker.dies_at = "frame"
    for _ in range(2):
        with pytest.raises(NotReady, match="no process is up"):
            host.apply_delta("small", delta(tmp_path, 1, dense_seed=1))
        assert version_of(host).generation == Generation(1, 0)
        assert not list((root / "small/1/deltas").glob("*.safetensors"))
    host.apply_delta("small", delta(tmp_path, 1))
    late = FakeWorker(0)
    host.initialize_worker(late)
    host.apply_delta("small", delta(tmp_path, 2, dense_seed=1))
    (*_, last), frame = late.ops("open", "frame"), version_of(host).change.frame.number
    assert late.ops("open", "frame") == [("open", 1, None), ("frame", 1, 0), last]
    assert last == ("frame", 1, frame)
    assert version_of(host).generation == Generation(1, 2)


def test_pin_of_a_dead_worker_does_not_block_deltas(loaded, tmp_path):
    host, workers = loaded
    version = version_of(host)
    workers[1].pin(version.replicas.key, 0)
    host._worker_pool.reap(workers[1])
    host.apply_delta("small", delta(tmp_path, 1))
    assert (version.control.words[PINS:] == IDLE).all()
    assert list(version.replicas._held) == [workers[0]]


def test_version_is_loaded_once_a_worker_is_up(hosts):
    host, _ = hosts(0)
    assert host.poll() == ["small version 1 waits: workers: no process is up; try again"]
    assert not host.ready
    host.initialize_worker(FakeWorker(0))
    until(lambda: host.poll() == ["small 1.0 loaded"])
    assert host.ready


def test_new_worker_gets_versions_then_routes_then_connections(loaded, tmp_path):
    host, _ = loaded
    host.opened()
    host.apply_delta("small", delta(tmp_path, 1, dense_seed=1))
    host.apply_delta("small", delta(tmp_path, 2))
    late = FakeWorker(0)
    host.initialize_worker(late)
    assert [op for op, _ in late.said][:3] == ["open", "frame", "routes"]
    frame, version = late.said[1][1], version_of(host)
    control = late.control[version.replicas.key]
    assert control.entry(control.publish_seq)[:3] == (2, 2, frame["frame"])
    named = {n for names in (*frame["tables"], frame["dense"]) for n in names.values()}
    assert {number for number, _ in frame["new"]} == named, "it holds nothing yet"
    assert late in host._worker_pool.available()
    host.apply_delta("small", delta(tmp_path, 3, dense_seed=3))
    assert len([m["new"] for op, m in late.said if op == "frame"][-1]) == len(version.dense)


def test_new_worker_gets_the_served_frame_not_a_refused_one(loaded, tmp_path, monkeypatch):
    host, _ = loaded
    host.apply_delta("small", delta(tmp_path, 1, dense_seed=1))
    with monkeypatch.context() as patched:
        patched.setattr(ChangeLog, "commit", lambda *_: (_ for _ in ()).throw(NotReady("no space")))
        with pytest.raises(NotReady, match="no space"):
            host.apply_delta("small", delta(tmp_path, 2, dense_seed=2))
    late = FakeWorker(0)
    host.initialize_worker(late)
    frame, control = late.said[1][1], late.control[version_of(host).replicas.key]
    assert control.entry(control.publish_seq)[:3] == (1, 1, frame["frame"])
    named = {n for names in (*frame["tables"], frame["dense"]) for n in names.values()}
    assert {number for number, _ in frame["new"]} == named, "it holds nothing yet"
    host.apply_delta("small", delta(tmp_path, 2, dense_seed=3))
    assert [op for op, _, _ in late.ops("frame")] == ["frame"] * 2


def test_version_is_closed_in_workers_after_it_is_unrouted(loaded, root):
    host, workers = loaded
    first = version_of(host).replicas.key
    write_package(root, version=2, users=USERS)
    host.model("small")._selection.folder = FolderWatch(root / "small")
    host.poll()
    second = version_of(host).replicas.key
    for worker in workers:
        assert worker.ops("close") == [("close", first, None)]
        closed = [op for op, _ in worker.said].index("close")
        routes = [m for op, m in worker.said[:closed] if op == "routes"][-1]
        assert routes["models"]["small"]["served"] == {"2": second}
    late = FakeWorker(1)
    host.initialize_worker(late)
    assert late.ops("open") == [("open", second, None)]


def test_kept_requests_are_those_of_the_worker_that_has_most(loaded):
    host, (first, second) = loaded
    replicas = version_of(host).replicas
    first.answers["kept"], second.answers["kept"] = {"kept": ""}, {"kept": b64encode(b"requests").decode()}
    assert replicas.kept() == b"requests"
    replicas.remember(b"requests")
    assert [message["requests"] for op, message in first.said if op == "remember"] == [b64encode(b"requests").decode()]


def test_first_worker_that_is_up_scores_kept_requests(loaded):
    host, (first, second) = loaded
    replicas = version_of(host).replicas
    scores = RequestScores(np.ones(2, bool), np.zeros(2, bool), {"score": np.ones((2, 1), np.float32)}, (4, 1))
    first.dies_at = "score"
    second.answers["score"] = {"scores": b64encode(dump_scores(scores)).decode()}
    assert replicas.score(b"requests", 1.0).lookups == (4, 1)
    second.answers["score"] = {"scores": None}
    assert replicas.score(b"requests", 1.0) is None
    second.dies_at = "score"
    assert replicas.score(b"requests", 1.0) is None


def test_unserved_version_is_freed_without_garbage_collection(loaded, root):
    host, _ = loaded
    version = weakref.ref(version_of(host))
    gc.disable()
    try:
        write_package(root, 2, users=USERS)
        host.poll()
        assert version_of(host).manifest.version == 2
        assert version() is None
    finally:
        gc.enable()


def test_version_that_cannot_be_opened_is_closed_everywhere(hosts):
    host, workers = hosts()
    workers[1].refuse = BadInput("no such backend here")
    with pytest.raises(BadInput, match="no such backend here"):
        host.load_all(strict=True)
    assert workers[0].ops("close") == [("close", 1, None)]
    late = FakeWorker(0)
    host.initialize_worker(late)
    assert late.ops("open") == []


def test_worker_that_rejects_its_routes_is_reaped(loaded):
    host, workers = loaded
    workers[0].dies_at = "routes"
    host.on_routes_changed()
    assert workers[0].killed
    assert last(workers[1])[0] == "routes"


def test_drain_waits_neither_for_routes_nor_silent_workers(loaded):
    host, workers = loaded
    host._worker_pool.silent = [1]
    told = len(workers[1].said)
    drain = threading.Thread(target=host.drain)
    with host._publishing:
        drain.start()
        drain.join(WAIT_S)
        assert not drain.is_alive()
    assert last(workers[0]) == ("drain", {})
    assert len(workers[1].said) == told
    host.initialize_worker(FakeWorker(1))
    assert [m["draining"] for op, m in workers[0].said if op == "routes"][-1]


def test_silent_worker_makes_the_whole_server_unready(loaded):
    host, workers = loaded
    assert host.ready
    host._worker_pool.silent = [1]
    host.on_suspects_changed()
    assert not host.ready
    assert last(workers[0]) == ("unready", {"seats": [1], "stale": "", "concerns": ()})
    assert last(workers[1]) != ("unready", {"seats": [1], "stale": "", "concerns": ()}), "it reads nothing"
    host.on_routes_changed()
    assert last(workers[0])[1]["ready"], "it is not the routes that tell of it"
    asked = len(workers[1].said)
    host.refresh()
    assert len(workers[1].said) == asked
    host._worker_pool.silent = []
    host.on_suspects_changed()
    assert host.ready
    assert [last(worker) for worker in workers] == [("unready", {"seats": [], "stale": "", "concerns": ()})] * 2


def test_worker_reports_are_summed_per_model(loaded):
    host, workers = loaded
    key = str(version_of(host).replicas.key)
    for worker, requests in zip(workers, (3, 4)):
        work = {"batches": 1, "requests": requests, "rows": 10, "padded_rows": 2, "failed": 0}
        counters = {"series": {}, "predicted": {}, "groups": {"default": work}, "lookups": {key: [[60, 5], [40, 2]]}}
        report = {
            "counters": counters,
            COUNTED: CounterWriter().write({key: {READS: requests, CACHE: 100}}),
            "gauges": {
                "groups": {"default": [1, 5]},
                "costs": {key: [[1, requests / 8]]},
                "computes": {key: [[1, "xla float32"]]},
                "parts_turns": {key: [64, 65]},
                "splits": {key: [[0, 64, True, 20.0, 10.0, 1]]},
                "cpu_s": 1.0,
            },
        }
        host.on_message(worker, {"op": "report", "report": report})
    (stats,), group = model_stats(host), host.group_stats()["default"]
    assert (group.work.requests, group.work.rows, group.queue_rows) == (7, 20, 10)
    assert (stats.lookups, stats.misses) == (200, 14)
    assert stats.counted == {READS: 7, CACHE: 200}
    host._worker_pool.reap(workers[0])
    (stats,), group = model_stats(host), host.group_stats()["default"]
    assert (group.work.requests, group.queue_rows, stats.lookups) == (7, 5, 200)
    assert stats.counted == {READS: 7, CACHE: 100}
    assert host.info()["workers"] == host.workers()
    served = host.info()["models"]["small"]["served"]["1"]
    assert served["buckets"] == {"1": 500000.0}, "of those that live"
    assert served["computes"] == {"1": "xla float32"}
    assert host.catalogue["small"].pick().replicas.user_split_thresholds == [64, 65]
    (choice,) = served["choices"]
    assert (choice["rows"], choice["chosen"], choice["cost_us"]) == (64, "divided", {"whole": 20.0, "divided": 10.0})


def test_canary_evidence_of_workers_adds_up(loaded):
    host, workers = loaded
    version = version_of(host)
    assert host.evidence("canary", version, version) is None
    for worker, requests in zip(workers, (3, 4)):
        block = StatsBlock(1)
        block.done(requests, rows=2 * requests)
        sides = [Sketch.empty(1).to_json(), Sketch.total(1, [block]).to_json()]
        counters = {observed("canary"): {evidence_key([version.replicas.key, version.replicas.key]): sides}}
        report = {
            "counters": counters,
            COUNTED: CounterWriter().write({}),
            "gauges": {"groups": {}, "costs": {}, "computes": {}, "parts_turns": {}, "splits": {}, "cpu_s": 1.0},
        }
        host.on_message(worker, {"op": "report", "report": report})
    host._worker_pool.reap(workers[0])
    baseline, canary = CanaryEvidence.from_json(1, host.evidence("canary", version, version))
    assert (baseline.requests, canary.requests, canary.rows) == (0, 7, 14)


def test_scrape_is_answered_to_its_worker_even_on_failure(hosts, caplog):
    host, workers = hosts()
    host.on_message(workers[1], {"op": "scrape", "id": 9})
    host.on_message(workers[0], {"op": "scrape", "id": 3})
    host._scrapes.submit(setattr, host, "_scrape", None)
    host.on_message(workers[0], {"op": "scrape", "id": 4})
    host._scrapes.shutdown()
    assert last(workers[1]) == ("reply", {"id": 9, "text": "metrics"})
    assert workers[0].said[-2:] == [("reply", {"id": 3, "text": "metrics"}), ("reply", {"id": 4, "text": None})]
    assert "could not render" in caplog.text


def test_resize_applies_to_current_and_future_workers(loaded):
    host, workers = loaded
    host.resize(2, "default")
    host.resize(3)
    host.resize(4, "default")
    said = [(None, 3), ("default", 4)]
    assert all([(m["group"], m["sessions"]) for op, m in w.said if op == "resize"][1:] == said for w in workers)
    late = FakeWorker(2)
    host.initialize_worker(late)
    assert [(m["group"], m["sessions"]) for op, m in late.said if op == "resize"] == said
    ops = [op for op, _ in late.said]
    assert ops.index("resize") < ops.index("routes"), "before it is offered"


def test_refused_session_count_is_not_kept(loaded, monkeypatch):
    host, workers = loaded
    for worker in workers:
        worker.answers["resize"] = NotFound("group 'x' is not one of default")
    with pytest.raises(NotFound, match="group 'x'"):
        host.resize(2, "x")
    for worker in workers:
        host.reap(worker)
    with pytest.raises(NotReady, match="no process is up"):
        host.resize(2)
    late = FakeWorker(0)
    host.initialize_worker(late)
    assert late.ops("resize") == []


def test_worker_that_fails_to_erase_is_named_and_keeps_none_from_erasing(loaded):
    host, (first, second) = loaded
    first.answers["erase"] = NotReady("worker 0: not enough memory")
    second.answers["erase"] = {"erased": [{"states": 1}, []]}
    erased = host.erase(ErasedUser("small", ("user",), "7"))
    assert erased.failed == ("worker 0, which failed: NotReady",)
    assert erased.counts["states"] == 2


def test_damaged_version_is_unrouted_before_a_worker_restarts(hosts, root, caplog):
    write_package(root, 2, users=USERS)
    host, workers = hosts()
    path = root / "small/2/tables/user.safetensors"
    with unleased(path):
        host.load_all()
    key = version_of(host).replicas.key
    why = f"tables/user.safetensors: expected {path.stat().st_size} bytes, got 100"
    os.truncate(path, 100)
    host.on_crash(0, "SIGBUS")
    host.on_crash(1, "SIGBUS")
    assert "all of them are read" not in caplog.text
    assert host.catalogue["small"].routes.served == {}
    for worker in workers:
        assert last(worker) == ("close", {"version": key})
        (*_, routes) = (m["models"] for op, m in worker.said if op == "routes")
        assert routes["small"]["served"] == {}
    late = FakeWorker(2)
    host.initialize_worker(late)
    assert late.ops("open", "frame") == []
    assert host.poll() == [f"small version 2 refused: {why}", "small 1.0 loaded"]
    assert host.status("small")[0] == VersionStatus(2, "END", why)
    assert [op for op, *_ in late.ops("open", "frame")] == ["open", "frame"]


def test_unexplained_sigbus_checks_every_mapped_byte(hosts, root, caplog):
    host, _ = hosts()
    path = root / "small/1/tables/user.safetensors"
    with unleased(path):
        host.load_all()
    before = path.stat()
    with open(path, "r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    host.on_crash(0, "SIGKILL")
    assert list(host.catalogue["small"].routes.served) == [1]
    host.on_crash(0, "SIGBUS")
    host._readings.shutdown()
    assert host.catalogue["small"].routes.served == {}
    assert "no longer served: tables/user.safetensors: was overwritten while being served" in caplog.text


def test_refused_delta_is_reported_to_every_worker_once(loaded):
    host, workers = loaded
    log_applier = host.catalogue["small"]._log_appliers[1]
    log_applier.status = dataclasses.replace(log_applier.status, state="WAITING", reason="delta 32 refused")
    before = sum(op != "report" for op, _ in workers[0].said)
    host.readiness.tell(host.on_staleness_changed)
    host.readiness.tell(host.on_staleness_changed)
    told = ("unready", {"seats": [], "stale": "", "concerns": host.concerns})
    assert host.concerns == ("model 'small' version 1: WAITING: delta 32 refused",)
    assert [last(worker) for worker in workers] == [told] * 2
    assert sum(op != "report" for op, _ in workers[0].said) == before + 1


def test_stale_model_is_reported_to_workers_without_unrouting_it(loaded):
    host, workers = loaded
    host.readiness.max_staleness_s = 5.0
    host.catalogue["small"]._log_appliers[1].current_at_s -= 60.0
    host.readiness.tell(host.on_staleness_changed)
    assert not host.ready
    assert [last(worker) for worker in workers] == [("unready", {"seats": [], "stale": host.stale, "concerns": ()})] * 2
    host.on_routes_changed()
    assert last(workers[0])[1]["ready"], "it is not the routes that tell of it"
    host.poll()
    host.readiness.tell(host.on_staleness_changed)
    assert host.ready
    assert [last(worker) for worker in workers] == [("unready", {"seats": [], "stale": "", "concerns": ()})] * 2


@needs("core_planner")
def test_new_worker_has_the_plan_of_cores_before_its_routes(root, tmp_path):
    config = ServeConfig(str(root), groups={"small": {"p99_ms": 50.0}, "rest": {"models": ["*"]}})
    worker_pool = FakeFleet(2)
    host, worker = WorkerPoolHost(config, worker_pool, lambda: b""), FakeWorker(0)
    try:
        # From here on the turns are the test's.
        host.core_planning.close()
        host.initialize_worker(worker)
        ops = [op for op, _ in worker.said]
        assert ops.index("place") < ops.index("routes")
        placed = next(message["placements"] for op, message in worker.said if op == "place")
        assert {name: frozenset(cores) for name, (_, cores) in placed.items()} == host.core_planning.cores
        worker.said.clear()
        host.core_planning.turn()
        assert [message["placements"] for op, message in worker.said if op == "place"] == [placed]
        worker_pool.silent = [0]
        worker.said.clear()
        host.core_planning.turn()
        assert [op for op, _ in worker.said if op == "place"] == [], "a suspect is told once it is heard again"
    finally:
        host.close()


@needs("core_planner")
def test_cores_are_planned_from_what_all_workers_report(root):
    config = ServeConfig(str(root), groups={"small": {"p99_ms": 50.0}})
    host, workers = WorkerPoolHost(config, FakeFleet(2), lambda: b""), [FakeWorker(n) for n in range(2)]
    try:
        for worker in workers:
            host.initialize_worker(worker)
            counts = {"small": {"work": {"requests": 3 + worker.slot}, "responses": [1, 2]}}
            report = {
                "counters": {"groups": {"small": {"requests": 3}}, PLANNED: counts},
                COUNTED: CounterWriter().write({}),
                "gauges": {"groups": {"small": [1, 0]}, PLANNED: {"small": [0.1, worker.slot]}},
            }
            host.on_message(worker, {"op": "report", "report": report})
        host._worker_pool.reap(workers[0])
        counts, costs = host._planned_from()
        assert counts == {"small": {"work": {"requests": 7}, "responses": [2, 4]}}, "the dead count"
        assert costs == [{"small": [0.1, 1]}], "of those that live"
        assert host.info()["groups"]["small"]["planned"]["cpus"]
    finally:
        host.close()
