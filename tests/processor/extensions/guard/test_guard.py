"""Without the guard nothing is judged, what it held stays held, and who asks for it is refused."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.watching import LabelSums
from tests.processor.extensions.guard.test_pre_deploy_check import GOOD, chain, drop, feed, opened, served
from tests.support.guarded import Stream, as_inputs, write_guarded


@pytest.fixture
def stream(tmp_path):
    write_guarded(tmp_path)
    return Stream()


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
