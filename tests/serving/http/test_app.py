import asyncio
import gzip
import json
import logging
import threading

import numpy as np
import pytest

from processor.errors import BadInput, Expired, Overloaded, TooLarge
from serving.front import catalog
from serving.front.wakeups import Wakeups
from serving.front_options import FrontOptions
from serving.http.app import DataApp
from serving.lifecycle import Lifecycle
from serving.request_headers import request_id_of
from serving.telemetry.logs import AccessLog
from serving.telemetry.metrics import Metrics
from serving.telemetry.tracing import Trace
from tests.serving.fakes import FLAT, RAGGED, SINGLE, TWO_OUTPUTS, FakeProcessor, call, send

ROW = {"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}]}
BODY = json.dumps(ROW).encode()
INFER = {
    "inputs": [
        {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]},
        {"name": "floats", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1]},
    ]
}


def serve(processor=None, access=None, tracer=None, **options):
    lifecycle = Lifecycle()
    processor = processor or FakeProcessor()
    lifecycle.open(processor)
    metrics = Metrics(lifecycle)
    app = DataApp(lifecycle, metrics, FrontOptions(version="9", **options), access=access, tracer=tracer)
    return app, processor, lifecycle, metrics


def test_a_prediction_names_its_generation():
    app, processor, _, _ = serve()
    reply = send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert reply.status == 200
    assert reply.json() == {"predictions": [[7.5]]}
    assert reply.headers["x-model-version"] == "3"
    assert reply.headers["x-model-generation"] == "3.17"
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert processor.requests[0].timeout_s is None


def test_the_column_form_broadcasts_one_user_to_many_candidates():
    app, _, _, _ = serve()
    body = json.dumps({"inputs": {"ids": [[1, 2, 3]], "floats": [[0, 0], [0, 1]]}}).encode()
    assert send(app, "POST", "/v1/models/ctr:predict", body).json() == {"outputs": [[6.0], [7.0]]}


@pytest.mark.parametrize(
    ("path", "version", "label"),
    [
        ("/v1/models/ctr/versions/3:predict", 3, None),
        ("/v1/models/ctr/labels/stable:predict", None, "stable"),
    ],
)
def test_a_version_or_a_label_may_be_asked_for(path, version, label):
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


def test_the_timeout_reaches_the_processor():
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


def test_the_server_describes_itself():
    app, _, _, _ = serve()
    assert send(app, "GET", "/v2").json() == {
        "name": "freshet",
        "version": "9",
        "extensions": list(catalog.EXTENSIONS),
    }
    assert send(app, "HEAD", "/v2/health/live").status == 200


def test_ready_is_503_while_loading_and_while_draining_but_live_is_200():
    lifecycle = Lifecycle()
    app = DataApp(lifecycle, Metrics(lifecycle), FrontOptions())
    for path in ("/v2/health/ready", "/v2/models/ctr/ready", "/v1/models/ctr"):
        assert send(app, "GET", path).status == 503
    loading = send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert (loading.status, loading.json()) == (503, {"error": "server: models are loading"})
    assert send(app, "GET", "/healthz").json() == {"live": True, "ready": False}
    lifecycle.open(FakeProcessor())
    assert send(app, "GET", "/v2/health/ready").status == 200
    assert send(app, "GET", "/v2/models/ctr/ready").json() == {"name": "ctr", "ready": True}
    lifecycle.drain()
    assert send(app, "GET", "/v2/health/ready").json() == {"error": "server: draining"}
    assert send(app, "GET", "/v2/models/ctr/ready").status == 503
    assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200
    assert send(app, "GET", "/v2/health/live").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/x", 400),
        ("POST", "/v1/models/other:predict", 404),
        ("POST", "/v1/models/ctr/versions/9:predict", 404),
        ("POST", "/v1/models/ctr/labels/none:predict", 400),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v1/models/ctr:predict", 400),
        ("DELETE", "/v2/models/ctr", 405),
        ("POST", "/v2/health/live", 405),
    ],
)
def test_what_is_not_there_is_answered_with_an_error_in_json(method, path, status):
    app, _, _, _ = serve()
    reply = send(app, method, path, BODY)
    assert reply.status == status
    assert list(reply.json()) == ["error"]
    assert ("allow" in reply.headers) == (status == 405)


def test_errors_of_the_processor_keep_their_status():
    app, processor, _, _ = serve()
    for error, status in ((BadInput("x"), 400), (TooLarge("x"), 413), (Overloaded("x", 2.1), 429)):
        processor.refuse = error
        reply = send(app, "POST", "/v1/models/ctr:predict", BODY)
        assert (reply.status, reply.json()) == (status, {"error": "x"})
        assert reply.headers.get("retry-after") == ("3" if status == 429 else None)
    processor.refuse, processor.fail = None, Expired("late")
    assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 504


def test_an_unforeseen_error_shows_nothing_of_itself(caplog):
    app, processor, _, _ = serve()
    processor.refuse = RuntimeError("/secret/path")
    with caplog.at_level(logging.ERROR, "freshet.http"):
        reply = send(app, "POST", "/v1/models/ctr:predict", BODY)
    assert (reply.status, reply.json()) == (500, {"error": "internal error"})
    assert "/secret/path" in caplog.text


def test_bodies_may_be_compressed_and_may_come_in_pieces():
    app, _, _, _ = serve()
    packed = gzip.compress(BODY)
    headers = {"content-encoding": "gzip"}
    assert send(app, "POST", "/v1/models/ctr:predict", [packed[:9], b"", packed[9:]], headers).status == 200
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, headers).status == 400
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, {"content-encoding": "br"}).status == 415


def test_a_body_that_is_too_large_is_refused_before_all_of_it_is_read():
    app, _, _, _ = serve(max_body_bytes=100)
    declared = send(app, "POST", "/v1/models/ctr:predict", [b"x" * 10] * 2, {"content-length": "101"})
    assert (declared.status, declared.headers["connection"]) == (413, "close")
    assert send(app, "POST", "/v1/models/ctr:predict", [b"x" * 60] * 9).status == 413
    assert (
        send(app, "POST", "/v1/models/ctr:predict", gzip.compress(b"x" * 101), {"content-encoding": "gzip"}).status
        == 413
    )
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, {"content-length": "x"}).status == 400
    assert send(app, "POST", "/v1/models/ctr:predict", BODY, {"content-length": "3"}).status == 400


def test_a_client_that_leaves_in_the_middle_of_its_body_gets_no_reply():
    app, processor, _, metrics = serve()
    assert asyncio.run(call(app, "POST", "/v1/models/ctr:predict", [BODY[:5]], disconnect=True)) is None
    assert processor.requests == []
    assert b'freshet_http_requests_total{code="499",protocol="tfs_rest"} 1.0' in metrics.scrape()
    assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200


def test_a_request_that_is_cancelled_while_it_waits_breaks_nothing():
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


def test_replies_that_finish_together_wake_the_loop_once():
    app, processor, _, _ = serve()
    processor.hold = True

    async def scenario():
        loop = asyncio.get_running_loop()
        wakeups, schedule = [], loop.call_soon_threadsafe
        tasks = [asyncio.create_task(call(app, "POST", "/v1/models/ctr:predict", BODY)) for _ in range(20)]
        while len(processor.held) < 20:
            await asyncio.sleep(0)
        loop.call_soon_threadsafe = lambda *args: (wakeups.append(args), schedule(*args))
        processor.release()
        del loop.call_soon_threadsafe
        return wakeups, await asyncio.gather(*tasks)

    wakeups, replies = asyncio.run(scenario())
    assert len(wakeups) == 1
    assert [r.status for r in replies] == [200] * 20


def test_no_reply_is_lost_between_threads():
    async def scenario():
        loop = asyncio.get_running_loop()
        wakeups = Wakeups(loop)
        futures = [loop.create_future() for _ in range(2000)]
        workers = [
            threading.Thread(
                target=lambda part: [wakeups.post(f.set_result, i) for i, f in part],
                args=(list(enumerate(futures))[n::4],),
            )
            for n in range(4)
        ]
        for worker in workers:
            worker.start()
        results = await asyncio.wait_for(asyncio.gather(*futures), 30)
        for worker in workers:
            worker.join()
        return results

    assert asyncio.run(scenario()) == list(range(2000))


def test_a_reply_after_the_loop_has_closed_is_dropped():
    loop = asyncio.new_event_loop()
    wakeups, results = Wakeups(loop), []
    loop.close()
    wakeups.post(results.append, 1)
    assert results == []


def test_a_reply_that_cannot_be_handed_over_does_not_stand_in_the_way_of_the_next(caplog):
    async def scenario():
        wakeups, future = Wakeups(asyncio.get_running_loop()), asyncio.get_running_loop().create_future()
        wakeups.post(lambda result: 1 / 0, 1)
        wakeups.post(future.set_result, 2)
        return await future

    assert asyncio.run(scenario()) == 2
    assert "could not be handed over" in caplog.text


def test_a_websocket_is_refused():
    app, _, _, _ = serve()
    with pytest.raises(RuntimeError, match="http wanted"):
        asyncio.run(app({"type": "websocket"}, None, None))


def test_an_overload_is_refused_before_the_body_is_read():
    app, processor, _, _ = serve(FakeProcessor(full=Overloaded("queue: full", 1.2)))
    for path in ("/v1/models/ctr:predict", "/v2/models/ctr/infer"):
        reply = send(app, "POST", path, b"this is no JSON")
        assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    assert processor.requests == []


@pytest.mark.parametrize(("path", "body"), [("/v1/models/ctr:predict", ROW), ("/v2/models/ctr/infer", INFER)])
def test_a_request_without_a_deadline_gets_the_servers_own_and_one_that_has_it_keeps_it(path, body):
    app, processor, _, _ = serve(default_timeout_ms=250.0)
    for headers in ({}, {"x-request-timeout-ms": "40"}):
        assert send(app, "POST", path, json.dumps(body).encode(), headers).status == 200
    assert [r.timeout_s for r in processor.requests] == [0.25, 0.04]


def test_a_caller_is_the_same_number_every_time():
    app, processor, _, _ = serve()
    for caller in ("alice", "bob", "alice", None):
        send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-caller-id": caller} if caller else {})
    alice, bob, again, nobody = [r.caller for r in processor.requests]
    assert alice == again != bob
    assert nobody is None


class Inline(FakeProcessor):
    """Answers on the loop that has attached itself, when that says so."""

    def attach(self, wake):
        self.wake, self.owner, self.woken = wake, threading.get_ident(), 0
        self.hold = True
        return True

    def submit(self, request, done, replica):
        super().submit(request, done, replica)
        if len(self.held) == 1:
            self.wake(0.0)

    def run_once(self):
        assert threading.get_ident() == self.owner
        self.woken += 1
        self.release()


def test_inline_what_a_turn_of_the_loop_has_read_is_computed_at_its_end_without_a_hand_over():
    app, processor, _, _ = serve(Inline())

    async def scenario():
        loop, wakeups = asyncio.get_running_loop(), []
        loop.call_soon_threadsafe = lambda *args: wakeups.append(args)
        replies = await asyncio.gather(*[call(app, "POST", "/v1/models/ctr:predict", BODY) for _ in range(20)])
        del loop.call_soon_threadsafe
        return wakeups, replies

    wakeups, replies = asyncio.run(scenario())
    assert [r.status for r in replies] == [200] * 20
    assert processor.woken == 1
    assert wakeups == []


def test_inline_the_owner_is_woken_from_other_threads_and_after_a_while():
    app, processor, _, _ = serve(Inline())

    async def scenario():
        await call(app, "POST", "/v1/models/ctr:predict", BODY)
        await asyncio.to_thread(processor.wake, 0.0)
        processor.wake(0.001)
        while processor.woken < 3:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_inline_every_loop_that_serves_becomes_the_owner():
    app, processor, _, _ = serve(Inline())
    owners = set()
    for _ in range(2):
        assert send(app, "POST", "/v1/models/ctr:predict", BODY).status == 200
        owners.add(processor.wake)
    assert len(owners) == 2


class FakeTrail:
    """serving.telemetry.tracing.Tracer: traces whatever has a traceparent."""

    def __init__(self):
        self.ended = []

    def begin(self, headers, protocol):
        return Trace(1, 2, 3, 0.5, protocol, "", request_id_of(headers)) if b"traceparent" in headers else None

    def end(self, trace, status):
        self.ended.append((trace, status))


def test_a_traced_request_is_followed_to_its_end_whatever_that_is():
    tracer = FakeTrail()
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


def test_every_answer_can_have_its_line_in_the_access_log(caplog):
    caplog.set_level(logging.INFO, "freshet.access")
    app, _, _, _ = serve(access=AccessLog(1.0))
    send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-request-id": "abc"})
    send(app, "GET", "/nowhere")
    found = [(r.fields["path"], r.fields["status"], r.fields["request_id"]) for r in caplog.records]
    assert found == [("/v1/models/ctr:predict", 200, "abc"), ("/nowhere", 404, "")]


def test_a_sticky_key_reaches_the_split():
    app, processor, _, _ = serve()
    send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-sticky-key": "user-7"})
    assert processor.requests[-1].key == b"user-7"
