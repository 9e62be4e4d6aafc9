import asyncio
import contextlib
import http.server
import json
import re
import threading

import numpy as np
import pytest

from freshet_serving import AsyncClient, Client, ConnectionLost, Prediction, Retry
from freshet_serving.processor.errors import BadInput, Expired, FreshetError, NotReady, Overloaded
from freshet_serving.serving.client import client as client_module
from tests.serving.client.test_http_transport import reply, score

ANSWER = reply([score()], np.array([0.25, 0.5], "<f4").tobytes())


class Script:
    """A server that answers as it is told, and notes when it was asked."""

    def __init__(self, answers):
        script = self
        self.answers, self.asked = list(answers), []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                script.asked.append(dict(self.headers))
                answer = script.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def sync_predict(address, retry=None, timeout_s=5.0):
    with Client(address, retry=retry or Retry(), timeout_s=timeout_s) as client:
        return client.predict("ctr", {"x": [1, 2]})


def async_predict(address, retry=None, timeout_s=5.0):
    async def run():
        async with AsyncClient(address, retry=retry or Retry(), timeout_s=timeout_s) as client:
            return await client.predict("ctr", {"x": [1, 2]})

    return asyncio.run(run())


both = pytest.mark.parametrize("predict", [sync_predict, async_predict])
SHED = (429, {"retry-after": "0"}, b'{"error": "full"}')


def test_number_of_best_items_is_a_header():
    with Script([(200, *ANSWER)] * 2) as script, Client(script.address) as client:
        client.predict("ctr", {"x": [1, 2]}, top_items=5, headers={"x-request-id": "r"})
        client.predict("ctr", {"x": [1, 2]})
    assert [asked.get("x-top-items") for asked in script.asked] == ["5", None]
    assert script.asked[0]["x-request-id"] == "r"


BEST = reply(
    [score(16, name="item_ids", datatype="INT64", shape=[1, 2]), score(8, name="scores", shape=[1, 2])],
    np.array([7, 9], "<i8").tobytes() + np.array([0.5, 0.25], "<f4").tobytes(),
)


def sync_recommend(address, *arguments, **options):
    with Client(address, timeout_s=5.0) as client:
        return client.recommend(*arguments, **options)


def async_recommend(address, *arguments, **options):
    async def run():
        async with AsyncClient(address, timeout_s=5.0) as client:
            return await client.recommend(*arguments, **options)

    return asyncio.run(run())


@pytest.mark.parametrize("recommend", [sync_recommend, async_recommend])
def test_best_items_of_one_user_are_two_arrays(recommend):
    with Script([(200, *BEST)]) as script:
        best = recommend(script.address, "next", {"history.item": [3, 5]}, 2, headers={"x-request-id": "r"})
    assert (best.item_ids.tolist(), best.scores.tolist(), best.generation) == ([7, 9], [0.5, 0.25], "3.17")
    assert [script.asked[0][name] for name in ("x-top-items", "x-request-id")] == ["2", "r"]


@pytest.mark.parametrize("recommend", [sync_recommend, async_recommend])
def test_reply_without_best_items_of_one_user_is_an_error(recommend):
    with Script([(200, *ANSWER)]) as script, pytest.raises(FreshetError, match="reply: expected item_ids and scores"):
        recommend(script.address, "next", {})


def recommending(user, **options):
    lists = tuple(options.pop(name, None) for name in ("allow", "block", "seen"))
    arguments = {"k": 3, "filters": None, "lists": lists, "like": None, "source": None, "headers": None}
    return client_module._recommending(user, **{**arguments, **options})


def test_lists_of_a_user_are_histories_and_other_values_are_rows():
    inputs, headers = recommending({"h.item": [3, 5], "age": 7, "v": [[0.5, 1.0]]})
    assert inputs["h.item"].values.tolist() == [3, 5]
    assert (inputs["age"], inputs["v"], headers) == ([7], [[0.5, 1.0]], {"x-top-items": "3"})


def test_choice_of_items_is_sent_as_inputs():
    inputs, _ = recommending({}, filters={"price": [None, np.float32(20)]}, allow=[1, 2], seen=["a"])
    assert json.loads(inputs["filter"][0]) == {"price": [None, 20.0]}
    assert inputs["allow"].values.tolist() == [1, 2]
    assert inputs["seen"].values.tolist() == [b"a"]


def test_sources_and_items_to_be_like_are_sent_as_inputs():
    assert recommending({}, source="popular")[0] == {"source": ["popular"]}
    assert recommending({}, like=7)[0] == {"like": [7]}
    with pytest.raises(BadInput, match=r"^source: expected either in user or as an option, got both"):
        recommending({"source": ["new"]}, source="popular")


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_filters_that_json_cannot_hold_are_refused(value):
    with pytest.raises(BadInput, match=r"^filters: expected what JSON can hold"):
        recommending({}, filters={"price": value})


def test_input_in_user_and_as_an_option_is_refused():
    with pytest.raises(BadInput, match=r"^seen: expected either in user or as an option, got both"):
        recommending({"seen": [1]}, seen=[2])


@both
def test_request_refused_by_load_shedding_is_retried(predict):
    with Script([SHED, (503, {}, b'{"error": "loading"}'), (200, *ANSWER)]) as script:
        assert predict(script.address).scores().tolist() == [0.25, 0.5]
        assert len(script.asked) == 3


@both
def test_lost_connection_is_reopened(predict):
    with Script([None, (200, *ANSWER)]) as script:
        assert isinstance(predict(script.address), Prediction)


@both
def test_remaining_deadline_is_sent_to_the_server(predict):
    with Script([SHED, (200, *ANSWER)]) as script:
        predict(script.address)
        first, second = (float(headers["x-request-timeout-ms"]) for headers in script.asked)
        assert 5000 >= first > second > 0


@both
def test_last_error_is_raised_when_retries_fail(predict):
    with Script([SHED] * 2) as script, pytest.raises(Overloaded, match="full"):
        predict(script.address, Retry(attempts=2))
    with Script([(400, {}, b'{"error": "x: wanted"}')]) as script, pytest.raises(BadInput, match="x: wanted"):
        predict(script.address)


@both
def test_refused_connection_is_reported_as_connection_lost(predict):
    with Script([]) as script:
        address = script.address
    with pytest.raises(ConnectionLost, match=f"^{re.escape(address)}: .*; is freshet serve running there"):
        predict(address, Retry(attempts=2, wait_s=0.001))


@both
def test_unresponsive_server_is_abandoned_at_the_deadline(predict):
    release = threading.Event()

    class Silent(Script):
        pass

    with Silent([]) as script:

        class Waiting(list):
            def pop(self, _):
                release.wait(30)
                return 200, *ANSWER

        script.answers = Waiting()
        try:
            with contextlib.suppress(ConnectionError), pytest.raises(Expired):
                predict(script.address, timeout_s=0.1)
        finally:
            release.set()


def test_ranking_has_one_user_and_its_candidates():
    with Script([(200, *ANSWER)]) as script, Client(script.address) as client:
        scores = client.rank("ctr", {"user": 7}, {"item": [1, 2]})
        assert scores.tolist() == [0.25, 0.5]
        with pytest.raises(BadInput, match=r"inputs\[item\]: expected in either user or candidates, got both"):
            client.rank("ctr", {"item": 7}, {"item": [1, 2]})


@pytest.mark.parametrize("address", ["localhost:8501", "ftp://host:1", "http://", "grpc://host:1/path"])
def test_invalid_addresses_are_refused(address):
    for kind in (Client, AsyncClient):
        with pytest.raises(BadInput, match="address"):
            kind(address)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_unreachable_server_is_not_ready(scheme):
    with Script([]) as script:
        port = script.address.rpartition(":")[2]
    with Client(f"{scheme}://127.0.0.1:{port}") as client:
        assert not client.ready(0.5)
    with (
        pytest.raises((ConnectionLost, NotReady, Expired)),
        Client(f"{scheme}://127.0.0.1:{port}", timeout_s=1.0) as client,
    ):
        client.predict("m", {"x": [1]})
