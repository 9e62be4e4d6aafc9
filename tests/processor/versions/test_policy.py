"""What an operator may write about a model."""

import json

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.user_bounds import OldestUsers
from freshet_serving.processor.versions.policy import ModelPolicy, VersionPolicy
from freshet_serving.processor.watching import CanaryBounds

WHOLE = {
    "versions": "latest:2",
    "labels": {"stable": 3, "canary": 4},
    "split": {"stable": 95, "canary": 5},
    "sticky_input": "user",
    "split_salt": 7,
    "shadow": "canary",
    "shadow_share": 0.5,
    "guard": {"window_s": 10.0, "min_requests": 20},
    "max_rows": 500,
    "max_ids": 1000,
}


def parse(raw):
    return ModelPolicy.parse(raw, "model.ctr")


def test_policy_round_trips_through_json():
    policy = parse(WHOLE)
    assert policy.versions == VersionPolicy(2)
    assert policy.guard == CanaryBounds(10.0, 20)
    assert parse(json.loads(json.dumps(policy.to_json()))) == policy
    assert policy.limits == {"max_rows": 500, "max_ids": 1000}
    assert parse({}).to_json() == parse({}).limits == {}


@pytest.mark.parametrize(
    ("spelled", "oldest"),
    [
        ("exact", None),
        ({"steps": 3}, OldestUsers(3)),
        ({"age_s": 60}, OldestUsers(None, 60.0)),
        ({"steps": 3, "age_s": 0.5}, OldestUsers(3, 0.5)),
        ({"dtype": "float16"}, OldestUsers(dtype="float16")),
    ],
)
def test_user_state_is_exact_or_within_steps_and_seconds(spelled, oldest):
    policy = parse({"user_state": spelled})
    assert policy.user_state == oldest
    assert policy.to_json() == {"user_state": spelled}
    # Where the file has bounds, an operator may ask for exact states again.
    assert parse({"user_state": "exact"}).over(policy).user_state is None


@pytest.mark.parametrize(
    ("spelled", "words"),
    [
        ("bounded", "user_state: expected 'exact', or a section of 'steps', 'age_s', 'dtype' or several"),
        ({}, "user_state: expected 'exact', or a section"),
        (None, "user_state: expected 'exact'"),
        ([1], "user_state: expected 'exact'"),
        ({"steps": 1, "seconds": 1}, "user_state: expected 'exact', or a section"),
        ({"steps": 0}, "user_state.steps: expected 1 to"),
        ({"steps": True}, "user_state.steps: expected 1 to"),
        ({"steps": 1.5}, "user_state.steps: expected 1 to"),
        ({"age_s": 0}, "user_state.age_s: expected more than 0"),
        ({"age_s": float("nan")}, "user_state.age_s: expected more than 0"),
        ({"age_s": 1e9}, "user_state.age_s: expected more than 0, at most 86400 seconds, got '1000000000.0'"),
        ({"dtype": "half"}, "user_state.dtype: expected 'float32' or 'float16', got 'half'"),
        ({"age_s": "60"}, "user_state.age_s: expected more than 0"),
    ],
)
def test_invalid_bounds_of_user_states_are_named(spelled, words):
    with pytest.raises(BadInput) as error:
        parse({"user_state": spelled})
    assert str(error.value).startswith(f"model.ctr.{words}")


def test_shadow_share_may_be_all_requests():
    assert parse({"shadow": "canary", "shadow_share": 1}).shadow_share == 1.0


def test_version_list_is_sorted_and_all_means_no_limit():
    assert parse({"versions": [7, 3, 7]}).versions == VersionPolicy(0, (3, 7))
    assert parse({"versions": "all"}).versions == VersionPolicy(0)


@pytest.mark.parametrize(
    ("spelled", "chosen"),
    [("latest:1", {9}), ("latest:2", {7, 9}), ("latest:99", {3, 7, 9}), ("all", {3, 7, 9}), ([3, 9, 11], {3, 9})],
)
def test_policy_chooses_among_the_existing_versions(spelled, chosen):
    assert parse({"versions": spelled}).versions.choose([3, 7, 9]) == chosen
    assert parse({"versions": spelled}).versions.choose([]) == set()


def test_saved_policy_overrides_the_file_until_it_is_reset():
    file, told = parse(WHOLE), parse({}).changed({"split": {"stable": 1}, "shadow": ""}, "policy")
    both = told.over(file)
    assert both.split == {"stable": 1}
    assert both.shadow == ""
    assert both.sticky_input == "user"
    assert told.changed({"split": None}, "policy").over(file).split == WHOLE["split"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "model.ctr: expected a section, got a list"),
        ({"version": 1}, "model.ctr: unknown key 'version'; known: versions, labels"),
        (
            {"versions": "latest:0"},
            "model.ctr.versions: expected 'latest:N', 'all' or a list of versions, got 'latest:0'",
        ),
        ({"versions": []}, "or a list of versions, got"),
        ({"versions": [True]}, "or a list of versions, got"),
        ({"versions": [1, -2]}, "or a list of versions, got"),
        ({"versions": [1, "2"]}, "or a list of versions, got"),
        ({"labels": {"a/b": 1}}, "model.ctr.labels: expected a label of letters"),
        ({"labels": {"a": 0}}, "expected versions of 1 or more"),
        ({"split": {"a": "5"}}, "model.ctr.split.a: expected a weight of 0 or more, got '5'"),
        ({"split": {"a": 0}}, "expected a weight above 0"),
        ({"split": {"a": float("nan")}}, "expected a weight of 0 or more"),
        ({"split": {"a": 10**400}}, "expected a weight of 0 or more"),
        ({"sticky_input": 3}, "model.ctr.sticky_input: expected a name"),
        ({"split_salt": -1}, "model.ctr.split_salt: expected 0 to"),
        ({"shadow_share": 0}, "model.ctr.shadow_share: expected a share above 0"),
        ({"max_rows": 0}, "model.ctr.max_rows: expected 1 to 2147483648, got '0'"),
        ({"max_ids": True}, "model.ctr.max_ids: expected 1 to"),
        ({"guard": {"x": 1}}, "model.ctr.guard: unknown key 'x'"),
    ],
)
def test_invalid_policy_field_is_named(raw, words):
    with pytest.raises(BadInput, match=words):
        parse(raw)
