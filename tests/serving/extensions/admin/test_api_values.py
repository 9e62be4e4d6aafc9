"""Every JSON value in place of every value of admin bodies, and all routes of models with every feature."""

import json
import re

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.extensions.online_features.store_settings import OnlineStoreSettings
from freshet_serving.processor.versions.policy import ModelPolicy
from tests.processor.engines import processors, publish
from tests.serving.extensions.admin.fakes import Client
from tests.serving.extensions.admin.test_model_views import Real
from tests.support import entities, looked_up
from tests.support.json_values import variants
from tests.support.packages import make_inputs, write_package

BODIES = {
    "POST deltas": {"path": "ctr/3/deltas/18.safetensors"},
    "POST rollback": {"generation": "3.16", "reason": "late labels", "only": "model"},
    "POST release": {"version": 3, "reason": "seen"},
    "POST reject": {"version": 3, "reason": "seen"},
    "POST versions/3/reject": {"reason": "seen"},
    "POST calibration": {"generation": "3.16", "rows": 10, "scores": {"score": 3.5}, "labels": {"score": 4}},
    "PUT labels/stable": {"version": 3},
}


@pytest.mark.parametrize("route", BODIES)
def test_every_value_of_an_admin_body_is_answered_or_refused(route):
    client = Client()
    method, path = route.split()
    for changed in variants(BODIES[route]):
        reply = client(method, f"/admin/models/ctr/{path}", content=json.dumps(changed), headers=JSON)
        assert 200 <= reply.status_code < 500, (json.dumps(changed)[:300], reply.text)


JSON = {"content-type": "application/json"}
POLICY = {
    "versions": [1], "split": {"stable": 50, "canary": 50}, "sticky_input": "user", "split_salt": 1,
    "shadow": "canary", "shadow_share": 0.5, "guard": {"max_error_rate": 1}, "delta_guard": {"mode": "on"},
    "max_rows": 10, "max_ids": 10, "user_state": {"steps": 3, "age_s": 60, "dtype": "float16"},
}  # fmt: skip
EXPLAIN = {
    "inputs": {"user": [3], "tags": [["a"]], "floats": [[0.5, 1, -2, 0]]},
    "row": 0,
    "against": "1.0",
    "vectors": True,
}


def test_every_value_of_an_explanation_is_answered_or_refused(tmp_path):
    entities.write_package(tmp_path)
    with processors(tmp_path) as build:
        client = Real(build())
        for document in (EXPLAIN, {"instances": [{"user": 3}], "label": "stable"}, {"request_id": "a", "version": 1}):
            for changed in variants(document):
                reply = client("POST", "/admin/models/small/explain", content=json.dumps(changed))
                assert 200 <= reply.status_code < 500, (json.dumps(changed)[:300], reply.text)


def test_every_value_of_a_policy_is_answered_or_refused(tmp_path):
    write_package(tmp_path)
    with processors(tmp_path) as build:
        client = Real(build())
        for changed in variants(POLICY):
            reply = client("PUT", "/admin/models/small/policy", content=json.dumps(changed), headers=JSON)
            assert 200 <= reply.status_code < 500, (json.dumps(changed)[:300], reply.text)


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, 16, True, "bfloat16"])
def test_refused_type_of_kept_users_is_named_with_those_expected(tmp_path, value):
    write_package(tmp_path)
    with processors(tmp_path) as build:
        body = json.dumps({"user_state": {"dtype": value}})
        reply = Real(build())("PUT", "/admin/models/small/policy", content=body, headers=JSON)
        assert reply.status_code == 400
        expected = f"policy.user_state.dtype: expected 'float32' or 'float16', got {str(value)!r}"
        assert reply.json() == {"error": expected}


def with_entities(root, build):
    entities.write_package(root)
    processor = build()
    processor.process(PredictRequest("small", {"user": np.array([3])}))
    return processor


def with_online_features(root, build):
    looked_up.write_package(root)
    processor = build(online_stores=(OnlineStoreSettings("main", "redis://127.0.0.1:1"),))
    sent = {"user": np.array([3]), "f2": np.zeros(1, np.float32), "f3": np.zeros(1, np.float32)}
    processor.process(PredictRequest("small", sent | {"user_id": np.array([7])}))
    return processor


def with_canary_guard_and_shadow(root, build):
    for version in (1, 2):
        write_package(root, version, users=range(20))
    publish(root, 1, users=[3])
    labels = {"stable": 1, "canary": 2, "shadow": 2}
    policy = {"versions": "all", "labels": labels, "split": {"stable": 50, "canary": 50}, "shadow": "shadow"}
    processor = build(policies={"small": ModelPolicy.parse(policy, "model.small")}, delta_guard="on")
    processor.process(PredictRequest("small", make_inputs([3])))
    return processor


@pytest.mark.parametrize("feature", [with_entities, with_online_features, with_canary_guard_and_shadow])
def test_all_routes_that_read_answer_for_models_with_every_feature(tmp_path, feature):
    with processors(tmp_path) as build:
        client = Real(feature(tmp_path, build), data_address=("127.0.0.1", 8501))
        paths = client("GET", "/admin/openapi.json").json()["paths"]
        reads = [
            path for path, methods in paths.items() if "get" in methods and "stream" not in path and "live" not in path
        ]
        assert "/admin/models/{name}/signature" in reads
        for path in reads:
            filled = re.sub(r"\{\w+\}", "1", path.replace("{name}", "small"))
            assert client("GET", filled).status_code < 500, path
        assert client("GET", "/admin/models/small/signature").status_code == 200
