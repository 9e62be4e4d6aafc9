"""A model's routes and policy, without any version."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.routed_model import RoutedModel
from tests.support.extensions import needs


@pytest.fixture
def routed(tmp_path):
    (tmp_path / "small").mkdir()
    told = []
    model = RoutedModel("small", Repository(tmp_path), SystemClock(), lambda: told.append(1), ModelPolicy())
    model.told_of = told
    return model


def test_policy_takes_effect_at_once_and_survives_a_restart(routed, tmp_path):
    routed.set_policy({"delta_guard": {"mode": "off"}})
    assert routed.policy.delta_guard.mode == "off"
    assert routed.told_of == [1]
    again = RoutedModel("small", Repository(tmp_path), SystemClock(), lambda: None, None)
    assert again.policy.delta_guard.mode == "off"
    again.set_policy({"delta_guard": None})
    assert again.policy.delta_guard.mode == "on"


def test_invalid_policy_changes_nothing(routed):
    with pytest.raises(BadInput, match=r"policy\.delta_guard\.mode: expected one of off, on, strict, got 'loud'"):
        routed.set_policy({"delta_guard": {"mode": "loud"}})
    with pytest.raises(BadInput, match="set each label by itself"):
        routed.set_policy({"labels": {"a": 1}})
    assert (routed.policy, routed.told_of) == (ModelPolicy(), [])


@needs("trials")
def test_sticky_input_that_no_version_reads_is_logged_once(routed, caplog):
    served = SimpleNamespace(manifest=SimpleNamespace(inputs=[SimpleNamespace(name="user")]))
    routed.routes = replace(routed.routes, served={1: served})
    split = {"a": 9, "b": 1}
    with caplog.at_level("WARNING"):
        routed.set_policy({"split": split, "sticky_input": "user"})
        assert caplog.messages == []
        for _ in range(2):
            routed.set_policy({"split": split, "sticky_input": "usr"})
    assert caplog.messages == [
        "small policy.sticky_input: expected one of the inputs user, got 'usr': requests without x-sticky-key are "
        "split at random"
    ]
