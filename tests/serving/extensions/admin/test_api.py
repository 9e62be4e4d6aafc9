import errno
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.extensions.online_features.store_settings import OnlineStoreSettings
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.watching import LabelSums
from freshet_serving.serving.extensions.admin import api
from freshet_serving.serving.loading.priority import BULK_NBYTES
from tests.processor.engines import processors, publish
from tests.serving.extensions.admin.fakes import Client
from tests.serving.extensions.admin.test_model_views import Real
from tests.support import entities, looked_up
from tests.support.json_values import variants
from tests.support.packages import make_inputs, write_package

OCTETS = {"content-type": "application/octet-stream"}


def test_models_are_listed_with_their_requests():
    client = Client()
    client.metrics.predicted("ctr", 64)
    reply = client("GET", "/admin/models")
    assert reply.json() == {"ready": True, "sessions": 2, "models": {"ctr": {"generation": "3.17", "requests": 1}}}


def test_health_names_refused_versions():
    client = Client()
    client.processor.concerns = ("model 'ctr' version 3: WAITING: delta 32 refused",)
    wanted = {"live": True, "ready": True, "reasons": ["model 'ctr' version 3: WAITING: delta 32 refused"]}
    assert client("GET", "/admin/health").json() == wanted


def test_health_is_answered_before_models_are_loaded():
    client = Client()
    client.lifecycle.close()
    assert client("GET", "/admin/health").json() == {"live": True, "ready": False}
    assert client("GET", "/admin/models").status_code == 503


def test_only_large_deltas_and_loads_run_on_bulk_threads():
    with ThreadPoolExecutor(1) as bulk:
        client = Client(bulk=bulk)
        submitted, submit = [], bulk.submit
        bulk.submit = lambda act, *args: submitted.append(act) or submit(act, *args)
        for size, count in ((BULK_NBYTES, 0), (BULK_NBYTES + 1, 1)):
            reply = client("POST", "/admin/models/ctr/deltas", content=b"x" * size, headers=OCTETS)
            assert (reply.status_code, len(submitted)) == (200, count)
        client("POST", "/admin/models/ctr/deltas", json={"path": "ctr/3/deltas/18.safetensors"})
        client("POST", "/admin/models/ctr/rollback", json={"generation": "3.16"})
        assert len(submitted) == 1
        assert client("POST", "/admin/models/ctr/versions/3/load").status_code == 200
        assert len(submitted) == 2
        reply = client("POST", "/admin/models/none/deltas", content=b"x" * (BULK_NBYTES + 1), headers=OCTETS)
        assert (reply.status_code, len(submitted)) == (404, 3), "what it raises is answered as ever"


def test_uploaded_delta_is_applied_in_a_worker_thread(caplog):
    client = Client()
    with caplog.at_level(logging.INFO, "freshet.admin"):
        reply = client("POST", "/admin/models/ctr/deltas", content=b"delta", headers=OCTETS)
    assert reply.json() == {"model": "ctr", "generation": "3.18", "rows": 5, "removed": 1, "apply_ms": 2.5}
    assert client.processor.calls == [("apply_delta", "ctr", b"delta", None, False)]
    assert "apply delta to 'ctr': upload of 5 bytes: done" in caplog.text


def test_upload_is_accepted_with_any_content_type():
    client = Client()
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        assert client("POST", "/admin/models/ctr/deltas", content=b"delta", headers=headers).status_code == 200
    assert len(client.processor.calls) == 2


def test_delta_is_applied_from_a_path():
    client = Client()
    assert client("POST", "/admin/models/ctr/deltas", json={"path": "ctr/3/deltas/18.safetensors"}).status_code == 200
    assert client.processor.calls[0][:4] == ("apply_delta", "ctr", None, "ctr/3/deltas/18.safetensors")


def test_delta_that_does_not_continue_the_log_is_409(caplog):
    client = Client()
    reply = client("POST", "/admin/models/ctr/deltas", content=b"conflict", headers=OCTETS)
    assert reply.status_code == 409
    assert reply.json() == {"error": "delta: continues step 9, the served generation is 3.17"}
    assert "refused" in caplog.text


def test_upload_size_is_limited_while_reading(monkeypatch):
    monkeypatch.setattr(api, "MAX_DELTA_NBYTES", 10)
    client = Client()
    reply = client("POST", "/admin/models/ctr/deltas", content=b"x" * 11, headers=OCTETS)
    assert (reply.status_code, reply.json()) == (413, {"error": "body: expected at most 10 bytes, got 11"})

    async def pieces():
        for _ in range(3):
            yield b"x" * 5

    streamed = client("POST", "/admin/models/ctr/deltas", content=pieces(), headers=OCTETS)
    assert streamed.status_code == 413
    assert client.processor.calls == []


@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "message"),
    [
        ("POST", "/admin/models/ctr/deltas", {"json": {}}, 400, "body.path: expected a value, got nothing"),
        ("POST", "/admin/models/ctr/deltas", {"json": {"path": 3}}, 400, "body.path"),
        (
            "POST",
            "/admin/models/ctr/deltas",
            {"json": {"path": "x", "y": 1}},
            400,
            "body.y: unknown field; known: path",
        ),
        ("POST", "/admin/models/ctr/deltas", {"json": [1]}, 400, "body: "),
        ("POST", "/admin/models/none/deltas", {"json": {"path": "x"}}, 404, "not in the repository"),
        (
            "POST",
            "/admin/models/ctr/rollback",
            {"json": {"generation": "x"}},
            400,
            "generation: expected 'version.step'",
        ),
        ("POST", "/admin/models/ctr/rollback", {"json": {"generation": "3.16", "only": "rows"}}, 400, "only"),
        ("POST", "/admin/models/ctr/rollback", {"content": b"{"}, 400, "body: expected a JSON object"),
        ("POST", "/admin/models/ctr/rollback", {"content": b" " * 70_000}, 413, "body: expected at most 65536"),
        ("POST", "/admin/models/ctr/versions/x/load", {}, 400, "path.version"),
        ("POST", "/admin/models/ctr/versions/0/load", {}, 400, "path.version"),
        ("PUT", "/admin/models/ctr/labels/stable", {"json": {"version": "3"}}, 400, "body.version"),
        ("PUT", "/admin/models/ctr/labels/stable", {"json": {"version": True}}, 400, "body.version"),
        ("GET", "/admin/none", {}, 404, "Not Found"),
        ("GET", "/redoc", {}, 404, "Not Found"),
        ("DELETE", "/admin/models", {}, 405, "Method Not Allowed"),
    ],
)
def test_invalid_request_is_one_json_error(method, path, request_, status, message):
    client = Client()
    reply = client(method, path, **request_)
    assert reply.status_code == status
    assert list(reply.json()) == ["error"]
    assert message in reply.json()["error"]
    assert client.processor.calls == []


def test_rollback_load_unload_and_labels_reach_the_processor():
    client = Client()
    rolled = client("POST", "/admin/models/ctr/rollback", json={"generation": "3.16", "reason": "late labels"}).json()
    assert (rolled["model"], rolled["generation"], rolled["undone"], rolled["next"]) == (
        "ctr",
        "3.16",
        ["3.17"],
        "3.18",
    )
    assert "publishes 3.18" in rolled["note"]
    assert client("POST", "/admin/models/ctr/versions/4/load").json()["state"] == "AVAILABLE"
    assert client("POST", "/admin/models/ctr/versions/3/unload").json()["state"] == "END"
    labelled = client("PUT", "/admin/models/ctr/labels/canary", json={"version": 4})
    assert labelled.json() == {"model": "ctr", "label": "canary", "version": 4}
    assert client("DELETE", "/admin/models/ctr/labels/canary").json() == {"model": "ctr", "label": "canary"}
    assert client("GET", "/admin/audit").json()["entries"][0]["what"] == "remove label 'canary' of 'ctr'"
    assert client.processor.calls == [
        ("rollback", "ctr", "3.16", "late labels", ""),
        ("load", "ctr", 4),
        ("unload", "ctr", 3),
        ("set_label", "ctr", "canary", 4),
        ("remove_label", "ctr", "canary"),
    ]


def test_rollback_takes_a_version_and_says_what_follows():
    client = Client()
    done = client("POST", "/admin/models/ctr/rollback", json={"generation": "2"}).json()
    assert (done["generation"], done["withdrawn"], done["next"]) == ("2.9", [3], "2.10")
    assert "Version 3 is withdrawn" in done["note"]
    assert "freshet version release ctr 3" in done["note"]


def test_held_deltas_are_released_or_rejected_and_labels_reported():
    client = Client()
    released = client("POST", "/admin/models/ctr/release", json={"reason": "seen"})
    assert released.json() == {"model": "ctr", "generation": "3.18"}
    rejected = client("POST", "/admin/models/ctr/reject", json={"version": 3}).json()
    assert (rejected["generation"], rejected["undone"], rejected["next"]) == ("3.20", ["3.18"], "3.21")
    assert rejected["kept"] == ["3.20"]
    assert "published again as 3.20" in rejected["note"]
    sums = {"generation": "3.17", "scores": 12.5, "labels": 10.0, "rows": 100}
    assert client("POST", "/admin/models/ctr/calibration", json=sums).status_code == 200
    assert client.processor.calls == [
        ("release", "ctr", None, "seen"),
        ("reject", "ctr", 3, ""),
        ("calibrated", "ctr", Generation(3, 17), LabelSums(12.5, 10.0, 100)),
    ]


@pytest.mark.parametrize("changed", [{"scores": -1}, {"rows": 0}, {"labels": "2"}, {"generation": "3"}, {"more": 1}])
def test_invalid_label_sums_are_refused(changed):
    client = Client()
    sums = {"generation": "3.17", "scores": 12.5, "labels": 10.0, "rows": 100} | changed
    assert client("POST", "/admin/models/ctr/calibration", json=sums).status_code == 400
    assert client.processor.calls == []


def test_name_cannot_forge_a_log_line(caplog):
    client = Client()
    with caplog.at_level(logging.INFO, "freshet.admin"):
        client("POST", "/admin/models/a%0Aforged/versions/1/load")
    assert "\n" not in caplog.records[0].message


def test_unexpected_error_reveals_no_details():
    client = Client()
    client.processor.info = lambda: {}["/secret"]
    reply = client("GET", "/admin/models")
    assert (reply.status_code, reply.json()) == (500, {"error": "internal error"})


def test_sessions_are_resized_in_one_or_all_groups():
    client = Client()
    assert client("PUT", "/admin/sessions", json={"sessions": 3}).json() == {"groups": {"default": 3}}
    assert client("PUT", "/admin/groups/default", json={"sessions": 1}).json() == {"groups": {"default": 1}}
    assert client("PUT", "/admin/groups/nobody", json={"sessions": 1}).status_code == 404
    for wrong in ({"sessions": 0}, {"sessions": 1025}, {"sessions": "2"}, {}):
        assert client("PUT", "/admin/sessions", json=wrong).status_code == 400
    assert client.processor.sessions == 1


def test_every_route_is_in_the_schema():
    paths = Client()("GET", "/admin/openapi.json").json()["paths"]
    assert paths.keys() == {
        "/admin/health",
        "/admin/models",
        "/admin/models/{name}/deltas",
        "/admin/models/{name}/rollback",
        "/admin/models/{name}/release",
        "/admin/models/{name}/reject",
        "/admin/models/{name}/calibration",
        "/admin/models/{name}/explain",
        "/admin/models/{name}/versions",
        "/admin/models/{name}/versions/{version}/reject",
        "/admin/models/{name}/versions/{version}/release",
        "/admin/models/{name}/versions/{version}/load",
        "/admin/models/{name}/versions/{version}/unload",
        "/admin/models/{name}/labels/{label}",
        "/admin/models/{name}/policy",
        "/admin/models/{name}/versions/{version}/readmit",
        "/admin/sessions",
        "/admin/groups/{group}",
        "/admin/live",
        "/admin/audit",
        "/admin/models/{name}/timeline",
        "/admin/models/{name}/tables",
        "/admin/models/{name}/canaries",
        "/admin/models/{name}/signature",
        "/admin/models/{name}/user_state",
        "/admin/models/{name}/erase",
        "/admin/models/{name}/try",
    }
    content = paths["/admin/models/{name}/deltas"]["post"]["requestBody"]["content"]
    assert content.keys() == {"application/octet-stream", "application/json"}


def test_route_of_a_missing_extension_is_refused_by_its_name():
    reply = Client(routes={})("POST", "/admin/models/ctr/explain", json={})
    assert reply.status_code == 400
    assert reply.json()["error"].startswith("explain needs the extension 'explaining': ")


@pytest.mark.parametrize("failure", [MemoryError(), OSError(errno.EMFILE, "Too many open files")])
def test_shortage_passes_and_is_not_an_error_of_the_server(failure, monkeypatch):
    client = Client()
    for method, path in (("info", "GET /admin/models"), ("apply_delta", "POST /admin/models/ctr/deltas")):
        with monkeypatch.context() as patched:
            patched.setattr(client.processor, method, Mock(side_effect=failure))
            reply = client(*path.split(), content=b"x" if path.startswith("POST") else None, headers=OCTETS)
        assert reply.status_code == 503, path
        assert list(reply.json()) == ["error"]


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
