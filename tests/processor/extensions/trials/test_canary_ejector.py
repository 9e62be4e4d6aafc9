"""Judges follow the canaries of a split; without the extension, whoever asks for a trial is refused by name."""

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.trials.canary_ejector import describe_trials
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.engines import USERS, request, watch_scores
from tests.support.packages import write_package

SPLIT = {"labels": {"stable": 1, "canary": 2}, "split": {"stable": 1, "canary": 1}}


def test_judge_of_a_former_canary_is_removed(root, open_processor):
    write_package(root, 2, users=USERS)
    processor = open_processor(clock=FakeClock(), policies={"small": ModelPolicy.parse(SPLIT, "model.small")})
    watch_scores(processor)
    (ejector,) = processor.host.score_watch._ejectors
    model = processor.host.model("small")
    assert set(ejector._judges[model]) == {2}
    assert [trial["canary"]["version"] for trial in describe_trials(processor.host, "small")["trials"]] == [2]
    processor.host.set_policy("small", {"split": {"stable": 1}})
    watch_scores(processor)
    assert not ejector._judges[model]


@pytest.mark.parametrize(
    ("policy", "key"),
    [(SPLIT, "split"), ({"labels": {"next": 1}, "shadow": "next"}, "shadow"), ({"guard": {"window_s": 10}}, "guard")],
)
def test_policy_that_asks_for_a_trial_is_refused_without_trials(root, open_processor, without_extensions, policy, key):
    asked = ModelPolicy.parse(policy, "model.small")
    without_extensions("trials")
    with pytest.raises(BadInput, match=rf"model.small.{key} needs the extension 'trials': FRESHET_EXTENSIONS="):
        open_processor(policies={"small": asked})
    processor = open_processor()
    with pytest.raises(BadInput, match=rf"policy.{key} needs the extension 'trials'"):
        processor.host.set_policy("small", {k: v for k, v in policy.items() if k != "labels"})


def test_engine_without_trials_answers_and_observes_nothing(root, open_processor, without_extensions):
    without_extensions("trials")
    processor = open_processor()
    assert processor.process(request([1])).outputs["score"].shape == (1, 1)
    watch_scores(processor)
    assert processor.predictor.observers.offered.keys() & {"shadow", "canary"} == set()
    assert processor.host.evidence("shadow", processor.host.model("small").pick()) is None


def test_model_whose_kept_policy_asks_for_a_trial_is_refused_beside_others(
    root, open_processor, without_extensions, caplog
):
    policies = {"small": ModelPolicy.parse({"labels": {"next": 1}}, "model.small")}
    open_processor(policies=policies).host.set_policy("small", {"shadow": "next"})
    write_package(root, 1, model="other", users=USERS)
    without_extensions("trials")
    host = open_processor(policies=policies, strict=False).host
    why = "model.small.shadow needs the extension 'trials'"
    assert host.models() == ["other", "small"]
    assert host.model("other").routes.served
    assert host.ready
    assert why in host.status("small")[0].error
    assert why in host.model("small").routes.refused
    assert host.info()["models"]["small"]["versions"][0]["error"] == host.status("small")[0].error
    assert caplog.text.count("small version 1 refused") == 1
    assert host.poll() == []
    with pytest.raises(BadInput, match=why):
        host.load("small", 1)


def test_model_is_served_once_its_policy_asks_for_no_trial_any_more(root, open_processor, without_extensions):
    policies = {"small": ModelPolicy.parse({"labels": {"next": 1}}, "model.small")}
    open_processor(policies=policies).host.set_policy("small", {"shadow": "next"})
    without_extensions("trials")
    host = open_processor(policies=policies, strict=False).host
    host.set_policy("small", {"shadow": None})
    assert host.poll() == ["small 1.0 loaded"]
    assert host.ready
