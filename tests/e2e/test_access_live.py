"""Keys where worker processes answer: one rate for all of them, keys that come and go under load."""

import concurrent.futures
import json
import threading
import time

import pytest

from freshet_serving.serving.access.key_file import RateLimits
from tests.e2e.servers import LiveServer
from tests.e2e.test_deltas_live import USERS
from tests.serving.access.keyed import Keyed
from tests.support.packages import write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PATH = "/v1/models/small:predict"


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    write_package(folder / "repository", users=USERS)
    keyed = Keyed(folder)
    options = ("--workers", "2", "--api-keys", str(keyed.path))
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        server.keyed, server.log = keyed, folder / "serve.log"
        until(lambda: server.request("GET", "/v2", headers=keyed.headers("all"))[0] == 200)
        yield server


def workers(server):
    reply = server.request("GET", "/admin/models", headers=server.keyed.headers("admin-read"), admin=True)
    return json.loads(reply[2])["workers"]


def counter(server, name):
    text = server.request("GET", "/metrics", headers=server.keyed.headers("metrics"))[2].decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def statuses(server, headers, count):
    """Of so many requests, each on a connection of its own: both workers get some."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: server.request("GET", "/v2", headers=headers)[0], range(count)))


def known(live, name, limits):
    """The headers of a new key that every worker knows and that has asked nothing yet."""
    limited, probe = live.keyed.add(name, ["predict"], limits), live.keyed.add(f"after-{name}", ["predict"])
    until(lambda: set(statuses(live, probe, 12)) == {200})
    return limited


def test_rate_limit_applies_to_the_server_not_each_worker(live):
    limited = known(live, "ten", RateLimits(rate=10.0))
    began_s = time.monotonic()
    answered = statuses(live, limited, 60)
    took_s = time.monotonic() - began_s
    # One burst, what the rate gave meanwhile, and a meeting of both workers now and then.
    assert 10 <= answered.count(200) <= 10 + 10 * took_s + 3
    assert set(answered) == {200, 429}


def test_one_connection_can_use_the_whole_rate(live):
    import http.client

    limited = known(live, "twenty", RateLimits(rate=20.0))
    connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=30)
    answered = []
    for _ in range(20):
        connection.request("GET", "/v2", headers=limited)
        reply = connection.getresponse()
        reply.read()
        answered.append(reply.status)
    connection.close()
    assert answered == [200] * 20


def come_and_go(live, name):
    one = live.keyed.add(name, ["predict"])
    until(lambda: set(statuses(live, one, 6)) == {200})
    live.keyed.revoke(name)
    until(lambda: set(statuses(live, one, 6)) == {401})


def test_keys_change_under_load_without_failing_remaining_keys(live):
    ended, failed, answered = threading.Event(), [], [0]

    def ask():
        while not ended.is_set():
            status = live.request("GET", "/v2", headers=live.keyed.headers("all"))[0]
            answered[0] += 1
            if status != 200:
                failed.append(status)

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    try:
        for number in range(3):
            come_and_go(live, f"c{number}")
    finally:
        ended.set()
        for thread in asking:
            thread.join()
    assert failed == []
    assert answered[0] > 50


def test_new_worker_uses_shared_keys_while_the_file_is_broken(live):
    import os
    import signal

    whole = live.keyed.path.read_bytes()
    failures = counter(live, "freshet_access_reload_failures_total")
    live.keyed.path.write_bytes(b"[[keys]]\nname = ")
    until(lambda: counter(live, "freshet_access_reload_failures_total") > failures)
    assert "keeping the old ones: api_keys: expected TOML" in live.log.read_text()
    victim = workers(live)[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: (one := workers(live)[0])["up"] and one["pid"] != victim)
    assert set(statuses(live, live.keyed.headers("all"), 12)) == {200}
    assert set(statuses(live, {}, 12)) == {401}
    live.keyed.path.write_bytes(whole)


def test_prediction_is_answered_and_unauthorised_callers_learn_nothing(live):
    body = b'{"instances": 1}'
    status, _, text = live.request("POST", PATH, body)
    assert (status, json.loads(text)) == (401, {"error": "authorization: expected a valid bearer token"})
    assert live.request("POST", PATH, body, live.keyed.headers("metrics"))[0] == 403
    assert live.request("POST", PATH, body, live.keyed.headers("predict"))[0] == 400
