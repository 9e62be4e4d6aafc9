"""The story of docker compose without Docker: its services as processes, watched, asked, and rolled back."""

import http.client
import importlib.util
import json
import shutil
import signal
import time
import urllib.parse
import urllib.request

import pytest

from tests.e2e.composed import ROOT, Composed

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="Debian's redis-server is not here"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's prometheus is not here"),
    pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="moto[server] is not installed"),
]
AUTHORIZED = {"Authorization": "Bearer demonstration", "Content-Type": "application/json"}
REPLICAS = ("replica-1", "replica-2")


def told(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read() or b"null")


def until(what, seconds, services):
    """What `what` says, once it says something; a service that has ended meanwhile ends the wait."""
    until_s = time.monotonic() + seconds
    while True:
        try:
            if said := what():
                return said
        except (OSError, http.client.HTTPException):
            pass
        for name, process in services.processes.items():
            assert process.poll() is None, services.log(name).read_text()[-4000:]
        assert time.monotonic() < until_s, {name: services.log(name).read_text()[-1500:] for name in services.processes}
        time.sleep(0.2)


def answers(services, query):
    quoted = urllib.parse.quote(query)
    return told(f"{services.url('prometheus', 9090)}/api/v1/query?query={quoted}")["data"]["result"]


def ask(services):
    rows = [{"user_id": n, "item_id": n, "category": "books", "price": 3.5} for n in range(8)]
    for name in REPLICAS:
        told(f"{services.url(name, 8501)}/v1/models/ctr:predict", {"instances": rows})


def generation(services, name):
    models = told(f"{services.url(name, 8502)}/admin/models", headers=AUTHORIZED)["models"]
    return models["ctr"]["generation"] if "ctr" in models else None


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    folder = tmp_path_factory.mktemp("composed")
    with Composed(folder) as services:
        services.start("s3")
        services.start("redis")
        services.finish("bucket")
        for name in ("clicks", "trainer", *REPLICAS, "prometheus"):
            services.start(name)
        for name in REPLICAS:
            until(lambda name=name: generation(services, name), 180, services)
        yield services


def test_prometheus_scrapes_both_replicas_and_the_trainer(services):
    def up():
        found = {result["metric"]["job"]: 0 for result in answers(services, "up == 1")}
        for result in answers(services, "up == 1"):
            found[result["metric"]["job"]] += 1
        return found == {"freshet": 2, "trainer": 1}

    assert until(up, 60, services)


def test_every_alert_rule_is_evaluated(services):
    def evaluated():
        groups = told(f"{services.url('prometheus', 9090)}/api/v1/rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    rules = until(evaluated, 60, services)
    assert len(rules) == (ROOT / "docs" / "reference" / "alerts.yml").read_text().count("- alert:")
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


def test_every_dashboard_query_returns_data(services):
    board = json.loads((ROOT / "deploy" / "grafana" / "freshet.json").read_text())
    left = {target["expr"] for panel in board["panels"] for target in panel.get("targets", ())}
    assert len(left) > 20

    def answered():
        ask(services)
        for query in list(left):
            if answers(services, query.replace("$instance", ".*").replace("$model", ".*")):
                left.discard(query)
        return not left

    try:
        until(answered, 180, services)  # scores are those of the last full minute
    except AssertionError:
        raise AssertionError(sorted(left)) from None


def test_rollback_on_one_replica_reaches_the_other(services):
    before = generation(services, "replica-1")
    until(lambda: generation(services, "replica-1") != before, 60, services)
    trainer = services.processes.pop("trainer")
    trainer.send_signal(signal.SIGTERM)
    trainer.wait(60)

    def agree():
        newest = {generation(services, name) for name in REPLICAS}
        return newest if len(newest) == 1 and newest != {before} else None

    until(agree, 30, services)
    told(f"{services.url('replica-1', 8502)}/admin/models/ctr/rollback", {"generation": before}, AUTHORIZED)
    for name in REPLICAS:
        assert until(lambda name=name: generation(services, name) == before, 30, services)
