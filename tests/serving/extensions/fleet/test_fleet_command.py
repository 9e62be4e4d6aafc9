"""`freshet fleet` as a shell runs it, on admin ports of servers that hold no model but say that they do."""

import json

import pytest
from typer.testing import CliRunner

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.extensions.fleet import fleet_command, fleet_polling
from tests.serving.commands.running import run
from tests.serving.extensions.fleet.test_fleet_comparison import said

WELL = """\
replica  ready  model  generation  digest  behind   stale  state
a        yes    ctr    3.7         d7           0   0.0 s  CURRENT
b        yes    ctr    3.7         d7           0  12.5 s  HELD
all 2 serve the same, 1 version
"""
ILL = """\
replica     ready  model  generation  digest  behind  stale  state
http://a:1  yes    ctr    3.7         d7           0  0.0 s  CURRENT
http://b:1  no     ctr    3.5         d5           2      -  BEHIND
http://c:1  -                                                unreachable
http://b:1: behind at ctr 3.5, the newest is 3.7
http://c:1: unreachable: Connection refused
http://b:1: not ready
"""


@pytest.fixture
def answers(monkeypatch):
    """What is said at each look, the last one for ever; the tokens and bounds it was asked with."""
    told, asked = [], []

    async def ask(there, token, timeout_s, model=None):
        asked.append(([each.where for each in there], token, timeout_s, model))
        return told.pop(0) if len(told) > 1 else list(told[0])

    monkeypatch.setattr(fleet_polling, "poll_all", ask)
    monkeypatch.setattr(fleet_command, "BETWEEN_S", 0.0)
    return told, asked


def invoke(*arguments, **env):
    result = CliRunner().invoke(app, ["fleet", *arguments], env={"COLUMNS": "200", **env})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_healthy_fleet_prints_a_table_and_exits_with_0(answers):
    told, asked = answers
    told.append([said("a"), said("b", state="HELD", staleness_s=12.5)])
    assert invoke("a:1", "b:1", "a:1", "--timeout", "3", FRESHET_ADMIN_TOKEN="t") == (0, WELL)
    assert asked == [(["a:1", "b:1"], "t", 3.0, None)]


def test_problems_are_listed_below_the_table_with_exit_1(answers):
    told, _ = answers
    gone = fleet_polling.ReplicaStatus("http://c:1", problem="unreachable: Connection refused")
    told.append([said("http://a:1"), said("http://b:1", step=5, ready=False, staleness_s=None), gone])
    assert invoke("http://a:1", "http://b:1", "http://c:1") == (1, ILL)


def test_json_contains_the_whole_report(answers):
    told, _ = answers
    told.append([said("a"), said("b", step=5)])
    code, output = invoke("a:1", "b:1", "--json", "--model", "ctr")
    document = json.loads(output)
    assert (code, document["well"]) == (1, False)
    assert document["problems"] == ["b: behind at ctr 3.5, the newest is 3.7"]
    behind = document["versions"][1]
    assert (behind["replica"], behind["generation"], behind["records_behind"], behind["wrong"]) == (
        "b",
        "3.5",
        2,
        "BEHIND",
    )
    assert behind["served"]["digest"] == "d5"
    assert document["replicas"][0] == {"replica": "a", "ready": True, "problem": ""}


def test_wait_polls_until_all_replicas_are_healthy(answers):
    told, asked = answers
    told += [[said("a"), said("b", step=5)], [said("a"), said("b", step=6)], [said("a"), said("b")]]
    assert invoke("a:1", "b:1", "--wait", "60")[0] == 0
    assert len(asked) == 3
    told[:] = [[said("a"), said("b", step=5)]]
    code, output = invoke("a:1", "b:1", "--wait", "0.05")
    assert code == 1
    assert output.count("replica") == 1


def test_watch_continues_until_interrupted(answers, monkeypatch):
    told, asked = answers
    told += [[said("a"), said("b", step=5)], [said("a"), said("b")]]
    stops = []
    monkeypatch.setattr("freshet_serving.serving.commands.shutdown_signals.stop_on_signal", stops.append)
    monkeypatch.setattr(fleet_command, "table", lambda report: stops[0]() if report.healthy else "not yet")
    code, output = invoke("a:1", "b:1", "--watch", "0.001")
    assert code == 0
    assert "not yet" in output
    assert len(asked) == 2


def test_service_addresses_are_resolved_on_every_poll(answers, monkeypatch):
    told, asked = answers
    told += [[said("a")], [said("a")]]
    found = [[], [fleet_polling.AdminAddress("http://10.0.0.1:8502", "10.0.0.1", 8502)]]

    async def resolve(service, timeout_s):
        return found.pop(0)

    monkeypatch.setattr(fleet_polling, "resolve", resolve)
    assert invoke("--service", "freshet:8502", "--wait", "60")[0] == 0
    assert [where for where, *_ in asked] == [[], ["http://10.0.0.1:8502"]]


def test_service_without_an_address_is_unhealthy(answers, monkeypatch):
    told, _ = answers
    told.append([])

    async def resolve(service, timeout_s):
        return []

    monkeypatch.setattr(fleet_polling, "resolve", resolve)
    code, output = invoke("--service", "freshet:8502")
    assert code == 1
    assert "freshet:8502: the name resolves to no address" in output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "expected addresses of admin ports or --service HOST:PORT"),
        (("a:1", "--watch", "1", "--wait", "1"), "got both"),
        (("nowhere",), "HOST:PORT of an admin port"),
        (("--service", "nowhere"), "HOST:PORT of an admin port"),
    ],
)
def test_unusable_address_is_refused_in_one_line(arguments, why):
    with pytest.raises(BadInput, match=why):
        run("fleet", *arguments)
