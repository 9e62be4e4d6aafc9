import asyncio
import json
import logging

import numpy as np
import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import Expired, Overloaded
from freshet_serving.processor.extensions.top_items.item_vectors import ItemVectors
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.serving.codecs.kserve_rpc import rows_parameters
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions
from freshet_serving.serving.front import catalog
from freshet_serving.serving.front.exchange import ServingContext
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.app import DataApp
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.logs import AccessLog
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FLAT, RAGGED, SINGLE, TWO_OUTPUTS, FakeProcessor, FakeTracer, call, send
from tests.serving.http.data_app import BODY, INFER, ROW, serve
from tests.support.towers import MODEL, World, change, write_towers


def test_prediction_names_its_generation():
    app, processor, _, _ = serve()
    reply = send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert reply.status == 200
    assert reply.json() == {"predictions": [[7.5]]}
    assert reply.headers["x-model-version"] == "3"
    assert reply.headers["x-model-generation"] == "3.17"
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert processor.requests[0].timeout_s is None


def test_column_form_broadcasts_one_user_to_many_candidates():
    app, _, _, _ = serve()
    body = json.dumps({"inputs": {"ids": [[1, 2, 3]], "floats": [[0, 0], [0, 1]]}}).encode()
    assert send(app, "POST", "/v1/models/ctr:predict", body).json() == {"outputs": [[6.0], [7.0]]}


@pytest.mark.parametrize(
    ("path", "version", "label"),
    [("/v1/models/ctr/versions/3:predict", 3, None), ("/v1/models/ctr/labels/stable:predict", None, "stable")],
)
def test_version_or_label_may_be_requested(path, version, label):
    app, processor, _, _ = serve()
    assert send(app, "POST", path, BODY).status == 200
    assert (processor.requests[0].version, processor.requests[0].label) == (version, label)


def test_infer_echoes_the_id_and_writes_binary_outputs():
    app, _, _, _ = serve()
    document = {**INFER, "id": "q", "parameters": {"binary_data_output": True, "timeout": 50_000}}
    reply = send(app, "POST", "/v2/models/ctr/infer", json.dumps(document).encode())
    at = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:at])["id"] == "q"
    assert np.frombuffer(reply.body[at:], np.float32).tolist() == [7.5]
    assert reply.headers["x-model-generation"] == "3.17"
    assert reply.headers["content-type"] == "application/octet-stream"


def test_timeout_reaches_the_processor():
    app, processor, _, _ = serve()
    send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-request-timeout-ms": "20"})
    send(app, "POST", "/v2/models/ctr/infer", json.dumps({**INFER, "parameters": {"timeout": 5000}}).encode())
    assert [r.timeout_s for r in processor.requests] == [0.02, 0.005]


@pytest.mark.parametrize("manifest", [FLAT, RAGGED, SINGLE, TWO_OUTPUTS])
def test_metadata_describes_every_kind_of_model(manifest):
    app, _, _, _ = serve(FakeProcessor({"ctr": manifest}))
    tensorflow = send(app, "GET", "/v1/models/ctr/metadata").json()
    kserve = send(app, "GET", "/v2/models/ctr").json()
    signature = tensorflow["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"].keys() == {i.name for i in manifest.inputs}
    assert {o["name"] for o in kserve["outputs"]} == {o.name for o in manifest.outputs}
    assert kserve["versions"] == ["3"]


def test_status_lists_versions_and_takes_one_by_number_or_label():
    app, _, _, _ = serve()
    everything = send(app, "GET", "/v1/models/ctr").json()["model_version_status"]
    assert [v["version"] for v in everything] == ["4", "3"]
    assert everything[0]["status"]["error_message"] == "a table does not fit"
    for path in ("/v1/models/ctr/versions/3", "/v1/models/ctr/labels/stable"):
        assert [v["state"] for v in send(app, "GET", path).json()["model_version_status"]] == ["AVAILABLE"]
    missing = send(app, "GET", "/v1/models/ctr/versions/9")
    assert missing.status == 404
    assert missing.json() == {"error": "Could not find version 9 of model ctr"}


def test_server_metadata_describes_the_server():
    app, _, _, _ = serve()
    assert send(app, "GET", "/v2").json() == {"name": "freshet", "version": "9", "extensions": list(catalog.EXTENSIONS)}
    assert send(app, "HEAD", "/v2/health/live").status == 200


def test_ready_is_503_while_loading_or_draining_but_live_200():
    lifecycle = Lifecycle()
    app = DataApp(ServingContext(lifecycle, Metrics(lifecycle), FrontendOptions()))
    for path in ("/v2/health/ready", "/v2/models/ctr/ready", "/v1/models/ctr"):
        assert send(app, "GET", path).status == 503
    loading = send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert (loading.status, loading.json()) == (503, {"error": "server: models are loading"})
    assert send(app, "GET", "/healthz").json() == {"live": True, "ready": False}
    lifecycle.open(FakeProcessor())
    assert send(app, "GET", "/v2/health/ready").status == 200
    assert send(app, "GET", "/v2/models/ctr/ready").json() == {"name": "ctr", "ready": True}
    lifecycle.block_readiness("server: worker 1 does not answer")
    reply = send(app, "GET", "/v2/health/ready")
    assert (reply.status, reply.json()) == (503, {"error": "server: worker 1 does not answer"})
    lifecycle.block_readiness("")
    assert send(app, "GET", "/v2/health/ready").status == 200
    lifecycle.drain()
    assert send(app, "GET", "/v2/health/ready").json() == {"error": "server: draining"}
    assert send(app, "GET", "/v2/models/ctr/ready").status == 503
    assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200
    assert send(app, "GET", "/v2/health/live").status == 200


def test_refused_delta_is_reported_by_a_server_that_stays_ready():
    lifecycle, processor = Lifecycle(), FakeProcessor()
    lifecycle.open(processor)
    app = DataApp(ServingContext(lifecycle, Metrics(lifecycle), FrontendOptions()))
    assert send(app, "GET", "/v2/health/ready").json() == {"ready": True}
    processor.concerns = ("model 'ctr' version 3: WAITING: delta 32 refused: delta: event_time",)
    reply = send(app, "GET", "/v2/health/ready")
    assert (reply.status, reply.json()) == (200, {"ready": True, "reasons": list(processor.concerns)})
    assert send(app, "GET", "/healthz").json() == {"live": True, "ready": True}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/doc", 404),
        ("POST", "/", 405),
        ("GET", "/v1/x", 400),
        ("POST", "/v1/models/other:predict", 404),
        ("POST", "/v1/models/ctr/versions/9:predict", 404),
        ("POST", "/v1/models/ctr/labels/none:predict", 400),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v1/models/ctr:predict", 400),
        ("GET", "/v1/models/ctr/labels/stable:regress", 400),
        ("GET", "/v2/models/ctr/infer", 405),
        ("GET", "/api/predict/ctr", 405),
        ("POST", "/v1/models/ctr", 400),
        ("DELETE", "/v2/models/ctr", 405),
        ("POST", "/v2/health/live", 405),
    ],
)
def test_missing_resource_is_a_json_error(method, path, status):
    app, _, _, _ = serve()
    reply = send(app, method, path, BODY)
    assert reply.status == status
    assert list(reply.json()) == ["error"]
    assert ("allow" in reply.headers) == ("method: " in reply.json()["error"])


def test_wrong_method_on_a_predict_route_lists_the_allowed_one():
    app, _, _, _ = serve()
    assert send(app, "GET", "/v1/models/ctr:predict").headers["allow"] == "POST"
    assert send(app, "POST", "/v1/models/ctr/metadata").headers["allow"] == "GET, HEAD"


def test_version_0_requests_the_newest():
    app, processor, _, _ = serve()
    assert send(app, "POST", "/v1/models/ctr/versions/0:predict", BODY).headers["x-model-version"] == "3"
    assert processor.requests[0].version is None
    assert send(app, "GET", "/v1/models/ctr/versions/0/metadata").json()["model_spec"]["version"] == "3"
    assert len(send(app, "GET", "/v1/models/ctr/versions/0").json()["model_version_status"]) == 2


def test_ignored_inputs_are_listed_in_a_header():
    app, _, _, _ = serve()
    columns = {"ids": [[1, 2, 3]], "floats": [[0, 0]]}
    body = json.dumps({"inputs": {**columns, "color": 1, "a\r\nb": 2}}).encode()
    reply = send(app, "POST", "/v1/models/ctr:predict", body)
    assert (reply.status, reply.headers["x-ignored-inputs"]) == (200, "color, a%0D%0Ab")
    many = {f"i{n}" * 100: 1 for n in range(100)}
    body = json.dumps({"inputs": {**columns, **many}}).encode()
    assert len(send(app, "POST", "/v1/models/ctr:predict", body).headers["x-ignored-inputs"]) < 700
    body = json.dumps({"inputs": columns}).encode()
    assert "x-ignored-inputs" not in send(app, "POST", "/v1/models/ctr:predict", body).headers


def test_unexpected_error_reveals_no_details(caplog):
    app, processor, _, _ = serve()
    processor.refuse = RuntimeError("/secret/path")
    with caplog.at_level(logging.ERROR, "freshet.http"):
        reply = send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert (reply.status, reply.json()) == (500, {"error": "internal error"})
    assert "/secret/path" in caplog.text


def test_request_cancelled_while_waiting_breaks_nothing():
    app, processor, _, _ = serve()

    async def scenario():
        processor.hold = True
        task = asyncio.create_task(call(app, "POST", "/v1/models/ctr:predict", BODY))
        while not processor.held:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(processor.release)
        processor.hold = False
        return await call(app, "POST", "/v1/models/ctr:predict", BODY)

    assert asyncio.run(scenario()).status == 200


def test_websocket_is_refused():
    app, _, _, _ = serve()
    with pytest.raises(RuntimeError, match="expected http"):
        asyncio.run(app({"type": "websocket"}, None, None))


def test_overload_is_refused_before_the_body_is_read():
    app, processor, _, _ = serve(FakeProcessor(full=Overloaded("queue: full", 1.2)))
    for path in ("/v1/models/ctr:predict", "/v2/models/ctr/infer"):
        reply = send(app, "POST", path, b"this is no JSON")
        assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    assert processor.requests == []


@pytest.mark.parametrize(("path", "body"), [("/v1/models/ctr:predict", ROW), ("/v2/models/ctr/infer", INFER)])
def test_request_without_a_deadline_gets_the_default_one(path, body):
    app, processor, _, _ = serve(default_timeout_ms=250.0)
    for headers in ({}, {"x-request-timeout-ms": "40"}):
        assert send(app, "POST", path, json.dumps(body).encode(), headers).status == 200
    assert [r.timeout_s for r in processor.requests] == [0.25, 0.04]


def test_traced_request_is_followed_to_any_outcome():
    tracer = FakeTracer()
    app, processor, _, _ = serve(tracer=tracer)
    headers = {"traceparent": "x", "x-request-id": "abc"}
    send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert tracer.ended == []
    send(app, "POST", "/v1/models/ctr:predict", BODY, headers)
    ((trace, status),) = tracer.ended
    assert (status, trace.protocol, trace.model, trace.request_id) == (200, "tfs_rest", "ctr", "abc")
    assert trace.generation == processor.generation
    assert trace.began_s < trace.parsed_s
    assert trace.encoding_s
    send(app, "POST", "/v1/models/ctr:predict", b"{", headers)
    assert tracer.ended[1][1] == 400
    processor.fail = Expired("late")
    send(app, "POST", "/v1/models/ctr:predict", BODY, headers)
    assert tracer.ended[2][1] == 504


def test_every_reply_can_be_logged_in_the_access_log(caplog):
    caplog.set_level(logging.INFO, "freshet.access")
    app, _, _, _ = serve(access=AccessLog(1.0))
    send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-request-id": "abc"})
    send(app, "GET", "/nowhere")
    found = [(r.fields["path"], r.fields["status"], r.fields["request_id"]) for r in caplog.records]
    assert found == [("/v1/models/ctr:predict", 200, "abc"), ("/nowhere", 404, "")]


def test_cross_site_page_changes_nothing_but_a_client_may():
    lifecycle, asked = Lifecycle(), []
    lifecycle.open(FakeProcessor())
    options = FrontendOptions(model_control="explicit")
    control = lambda operation, arguments: asked.append(operation) or {}  # noqa: E731
    app = DataApp(ServingContext(lifecycle, Metrics(lifecycle), options), control=control, regions=SystemRegions())
    loading = [f"/v2/repository/models/ctr/{word}" for word in ("load", "unload")]
    sharing = ["/v2/systemsharedmemory/region/a/register", "/v2/systemsharedmemory/unregister"]
    for path in (*loading, *sharing):
        for other in (
            {"origin": "http://evil.example"},
            {"origin": "null", "content-type": "text/plain"},
            {"sec-fetch-site": "cross-site"},
            # What a name says that its owner has pointed here.
            {"origin": "http://evil.example:8501", "host": "evil.example:8501", "sec-fetch-site": "same-origin"},
        ):
            reply = send(app, "POST", path, b"{}", {"host": "localhost:8501", **other})
            assert (reply.status, list(reply.json())) == (403, ["error"])
    assert asked == []
    own = {"host": "localhost:8501", "origin": "http://localhost:8501", "sec-fetch-site": "same-origin"}
    for headers in ({"host": "freshet.example:8501"}, own):
        assert [send(app, "POST", path, b"{}", headers).status for path in loading] == [200, 200]
        assert [send(app, "POST", path, b"{}", headers).status for path in sharing] == [400, 200]
    assert asked == ["load", "unload"] * 2


def test_no_reply_allows_cross_site_reading():
    app, _, _, _ = serve()
    other = {"origin": "http://evil.example", "sec-fetch-site": "cross-site", "content-type": "text/plain"}
    for method, path, body, status in (
        ("POST", "/v1/models/ctr:predict", BODY, 200),
        ("GET", "/v2/models/ctr", b"", 200),
        ("OPTIONS", "/v1/models/ctr:predict", b"", 400),
    ):
        reply = send(app, method, path, body, other)
        assert reply.status == status
        assert not [name for name in reply.headers if name.startswith("access-control-")]


TOP = {"x-top-items": "3"}


ASKED = (
    (f"/v1/models/{MODEL}:predict", {"inputs": {"user": [1]}}),
    (f"/v2/models/{MODEL}/infer", {"inputs": [{"name": "user", "shape": [1], "datatype": "INT64", "data": [1]}]}),
)


@pytest.mark.parametrize(("path", "document"), ASKED)
def test_header_names_vectors_that_lag(path, document, tmp_path, monkeypatch):
    monkeypatch.setattr(ItemVectors, "advance", lambda self, state: False)
    world = World.first(range(20))
    write_towers(tmp_path, world)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        app = serve(processor.predictor)[0]

        def post(headers=TOP):
            reply = send(app, "POST", path, json.dumps(document).encode(), headers)
            return reply.status, reply.headers.get("x-model-generation"), reply.headers.get("x-item-generation")

        assert post() == (200, "1.0", None)
        for step, dense in ((1, "user"), (2, "item")):
            world, delta = change(world, step, dense=[dense])
            write_delta(tmp_path / "upload", delta)
            processor.apply_delta(MODEL, data=(tmp_path / "upload").read_bytes())
            assert post() == (200, f"1.{step}", None if dense == "user" else "1.1")


def test_streams_name_them_by_a_parameter():
    reply = message("inference.ModelInferResponse").FromString(rows_parameters([(b"x-item-generation", b"1.3")]))
    assert reply.parameters["item_generation"].string_param == "1.3"
