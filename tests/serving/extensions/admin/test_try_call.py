"""A request that is tried: answered by the data port, as any other, and bounded."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from freshet_serving.serving.extensions.admin import try_call
from freshet_serving.serving.extensions.admin.try_call import MAX_BODY_NBYTES
from tests.serving.extensions.admin.fakes import Client


class DataPort(BaseHTTPRequestHandler):
    """A data port that says what it was asked."""

    asked: list = []  # noqa: RUF012
    status, extra = 200, b""
    wait = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append((self.path, body))
        if self.wait is not None:
            self.wait.wait(30)
        reply = json.dumps({"outputs": [0.25]} if self.status == 200 else {"error": "inputs: no"}).encode() + self.extra
        self.send_response(self.status)
        self.send_header("content-length", str(len(reply)))
        self.send_header("x-model-generation", "3.17")
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *args):
        pass


@pytest.fixture
def port(monkeypatch):
    handler = type("Handler", (DataPort,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        handler.address = server.server_address
        yield handler
        server.shutdown()
        thread.join()


def tried(port, path="/admin/models/ctr/try", body=b'{"inputs": [9007199254740993]}', **options):
    return Client(data_address=port.address, **options)("POST", path, content=body)


def test_body_is_forwarded_unchanged_and_the_generation_returned(port):
    reply = tried(port)
    assert reply.status_code == 200
    told = reply.json()
    assert (told["generation"], told["reply"]) == ("3.17", {"outputs": [0.25]})
    assert told["took_ms"] > 0
    assert port.asked == [("/v1/models/ctr:predict", b'{"inputs": [9007199254740993]}')]


def test_version_or_label_is_forwarded_as_one_path_segment(port):
    tried(port, "/admin/models/ctr/try?version=4")
    tried(port, "/admin/models/ctr/try?label=canary")
    tried(port, "/admin/models/a%20b%3Fx/try?label=..%2f..%2fv2")
    assert [path for path, _ in port.asked] == [
        "/v1/models/ctr/versions/4:predict",
        "/v1/models/ctr/labels/canary:predict",
        "/v1/models/a%20b%3Fx/labels/..%2F..%2Fv2:predict",
    ]
    assert tried(port, "/admin/models/ctr/try?version=4&label=x").status_code == 400
    assert tried(port, "/admin/models/ctr/try?version=0").status_code == 400
    assert tried(port, f"/admin/models/ctr/try?label={'x' * 129}").status_code == 400
    assert len(port.asked) == 3


def test_refused_prediction_refuses_the_trial_call(port):
    port.status = 400
    reply = tried(port)
    assert (reply.status_code, reply.json()) == (400, {"error": "inputs: no"})


def test_bodies_and_replies_are_bounded(port, monkeypatch):
    assert tried(port, body=b"x" * (MAX_BODY_NBYTES + 1)).status_code == 413
    assert port.asked == []
    monkeypatch.setattr(try_call, "MAX_REPLY_NBYTES", 100)
    port.extra = b" " * 200
    assert tried(port).status_code == 413


def test_number_of_concurrent_calls_is_limited(port):
    port.wait, client = threading.Event(), Client(data_address=port.address)

    async def ask():
        import httpx

        transport = httpx.ASGITransport(client.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=client.base) as session:
            calls = [asyncio.create_task(session.post("/admin/models/ctr/try", content=b"{}")) for _ in range(5)]
            while sum(call.done() for call in calls) < 3:
                await asyncio.sleep(0.005)
            port.wait.set()
            return sorted([(await call).status_code for call in calls])

    assert asyncio.run(ask()) == [200, 200, 429, 429, 429]
    assert tried(port).status_code == 200


def test_missing_data_port_is_503(port):
    assert Client()("POST", "/admin/models/ctr/try", content=b"{}").status_code == 503
    gone = Client(data_address=("127.0.0.1", 1))("POST", "/admin/models/ctr/try", content=b"{}")
    assert (gone.status_code, gone.json()) == (503, {"error": "try: the data port does not answer"})


def test_port_bound_to_every_address_is_called_on_loopback(port):
    port.address = ("0.0.0.0", port.address[1])
    assert tried(port).status_code == 200


def test_best_items_are_asked_for_by_the_header(port, monkeypatch):
    heads = []
    reply = {"outputs": {"item_ids": [[2**60 + 1, 3]], "scores": [[0.5, 0.25]]}}
    monkeypatch.setattr(try_call, "_call", lambda *asked: heads.append(asked[-1]) or answered(reply))
    told = tried(port, "/admin/models/ctr/try?top_items=2").json()
    assert heads == [{"x-top-items": "2"}]
    assert told["items"] == {"ids": [str(2**60 + 1), "3"], "scores": [0.5, 0.25], "columns": {}}
    assert told["item_generation"] == "1.2"
    for number in (0, 1001, "x"):
        assert tried(port, f"/admin/models/ctr/try?top_items={number}").status_code == 400


def answered(document):
    heads = {"x-model-generation": "9.9", "x-item-generation": "1.2"}
    return try_call._Answer(200, heads, json.dumps(document).encode())
