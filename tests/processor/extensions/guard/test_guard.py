"""Versions that the guard takes back; without it nothing is judged, and what it held stays held."""

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.score_watch import ScoreWatch
from freshet_serving.processor.versions.version_actions import release_version
from freshet_serving.processor.watching import LabelSums, Sketch, StatsBlock
from tests.processor.engines import USERS, publish, request, watch_scores
from tests.processor.extensions.guard.fed import GOOD, chain, drop, feed, opened, served
from tests.processor.versions.models import open_model
from tests.support.guarded import as_inputs
from tests.support.packages import write_package
from tests.support.waiting import until


def test_fault_is_served_without_the_guard(tmp_path, stream, without_extensions):
    without_extensions("guard")
    model = opened(tmp_path)
    feed(tmp_path, model, stream, 2)
    drop(tmp_path, stream.fault("zeroed"))
    assert model.poll() == ["small 1.3 served"]
    assert model.judges.by_name == {}
    assert not model.monitored
    replicas = model.pick().replicas
    assert (replicas.kept(), replicas.score(b"", 1.0)) == (b"", None)
    replicas.remember(b"")
    assert {e["here"]["verdict"] for e in model.timeline(1, 9)["entries"]} == {"not judged"}


def test_hold_of_a_guard_is_obeyed_without_it_until_a_person_releases_it(tmp_path, stream, without_extensions):
    model = opened(tmp_path)
    feed(tmp_path, model, stream)
    drop(tmp_path, stream.fault("zeroed"))
    model.poll()
    assert model.chain(1).state == "HELD"
    without_extensions("guard")
    other = opened(tmp_path)
    other.poll()
    assert (served(other), other.chain(1).state) == (f"1.{GOOD}", "HELD")
    assert chain(tmp_path).history.gate is not None
    assert str(other.release(1)) == f"1.{GOOD + 1}"


@pytest.mark.parametrize(
    ("policy", "key"),
    [({"delta_guard": {"mode": "on"}}, "delta_guard"), ({"delta_guard": {"bias": 0.1}}, "delta_guard"),
     ({"unjudged": "hold"}, "unjudged")],
)  # fmt: skip
def test_policy_that_asks_for_the_guard_is_refused_without_it(root, open_processor, without_extensions, policy, key):
    asked = ModelPolicy.parse(policy, "model.small")
    without_extensions("guard")
    with pytest.raises(BadInput, match=rf"model.small.{key} needs the extension 'guard': FRESHET_EXTENSIONS="):
        open_processor(policies={"small": asked})
    host = open_processor().host
    with pytest.raises(BadInput, match=rf"policy.{key} needs the extension 'guard'"):
        host.set_policy("small", policy)
    with pytest.raises(BadInput, match=r"^calibration needs the extension 'guard'"):
        host.calibrated("small", Generation(1, 0), LabelSums(1.0, 1.0, 2))


def test_mode_that_asks_for_the_guard_is_refused_without_it(open_processor, without_extensions):
    without_extensions("guard")
    with pytest.raises(BadInput, match=r"^delta_guard needs the extension 'guard'"):
        open_processor(delta_guard="strict")
    off = {"small": ModelPolicy.parse({"delta_guard": {"mode": "off"}, "unjudged": "serve"}, "model.small")}
    assert open_processor(delta_guard="off", policies=off).host.ready


def test_example_of_a_request_is_kept_without_the_guard(tmp_path, stream, without_extensions):
    without_extensions("guard")
    model = opened(tmp_path, asked=False)
    replica = model.pick().replicas
    inputs = as_inputs(8)
    replica.sample.take(replica.plan.bind_inputs(inputs), inputs)
    assert replica.example() is inputs


def test_canary_check_error_of_one_model_spares_the_others(root, open_processor, monkeypatch, caplog):
    write_package(root, model="able", users=USERS)
    processor = open_processor()
    sketch = processor.host.sketch

    def broken(version):
        if version.manifest.model == "able":
            raise RuntimeError("out of order")
        return sketch(version)

    monkeypatch.setattr(processor.host, "sketch", broken)
    watch_scores(processor)
    processor.process(request([1]))
    watch_scores(processor)
    assert processor.host.model("small").judges.trend(1)[0][0].count == 1
    assert "cannot check the statistics of model able" in caplog.text


def test_monitoring_continues_after_a_rollback_beyond_memory(root, open_processor):
    for step in (1, 2, 3):
        publish(root, step, [step], tag=step, dense_seed=step)
    processor = open_processor(undo_depth=1)
    processor.batch_process([request([n], seed=n) for n in range(10)])
    watch_scores(processor)
    processor.rollback("small", Generation(1, 1))
    processor.batch_process([request([1, 2, 3]) for _ in range(20)])
    watch_scores(processor)
    processor.process(request([1]))
    watch_scores(processor)
    scores_since = processor.host.model("small").judges.trend(1)[0][0]
    # 61 if the host's own look came between the rollback and the requests.
    assert scores_since.count in (1, 61), "more than before the rollback, and yet counted anew"
    assert (scores_since.bins >= 0).all()


class Evidence:
    """Sketches of versions that score as a test says."""

    def __init__(self):
        self.blocks = {}

    def serve(self, number, score, requests=500):
        block = self.blocks.setdefault(number, StatsBlock(1))
        block.done(requests, requests * 4)
        block.note(0, np.linspace(score, 2 * score, requests * 4, dtype=np.float32))

    def sketch(self, version):
        return Sketch.total(1, [self.blocks.setdefault(version.manifest.version, StatsBlock(1))])


def test_version_that_turns_out_to_be_bad_is_taken_back(root):
    model, evidence, clock = open_model(root), Evidence(), FakeClock()
    watch = ScoreWatch(evidence, clock)
    try:
        watch.look({"small": model})
        evidence.serve(1, 0.1)
        watch.look({"small": model})
        write_package(root, 2, users=USERS)
        model.poll()
        watch.look({"small": model})
        evidence.serve(2, 0.1)
        watch.look({"small": model})
        assert model.judges.trend(2)[1] == (0.0,)
        evidence.serve(2, 30.0, requests=5000)
        # The rollback is counted last, by another thread.
        until(lambda: watch.look({"small": model}) or model.judgement_counts.taken_back)
        assert model.pick().manifest.version == 1
    finally:
        watch.close()
    withdrawn, *_ = (one for one in Repository(root).version_records("small").all() if one.version == 2)
    assert (withdrawn.action, withdrawn.by) == ("withdraw", "rollback")
    assert "rolled back automatically: shift: scores have shifted by" in withdrawn.reason
    assert dict(model.judgement_counts.taken_back) == {"shift": 1}


def test_version_that_a_person_has_released_stays(root):
    model, evidence = open_model(root), Evidence()
    watch = ScoreWatch(evidence, FakeClock())
    try:
        watch.look({"small": model})
        evidence.serve(1, 0.1)
        watch.look({"small": model})
        write_package(root, 2, users=USERS)
        release_version(Repository(root), "small", 2)
        model.poll()
        watch.look({"small": model})
        evidence.serve(2, 30.0)
        watch.look({"small": model})
    finally:
        watch.close()
    assert model.pick().manifest.version == 2
    assert not model.judgement_counts.taken_back
