"""Erasing a user over the admin port: what this process keeps is gone, and what is not reached is named."""

import asyncio
import gc
import logging

import httpx
import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.repository import Erasures
from freshet_serving.serving.access.key_file import ApiKeys
from freshet_serving.serving.extensions.admin.api import create_admin
from freshet_serving.serving.extensions.admin.erase_route import ASKED, NO_COLUMN, NO_TRAINER, NOT_REACHED
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.extensions.admin.fakes import guard_of
from tests.support.packages import make_inputs, write_package

USER, OTHER = 7_777_777_777_777, 8
ROUTE = "/admin/models/small/erase"


def opened(folder):
    write_package(folder / "repository", users=range(20))
    return Processor.initialize(ProcessorConfig(str(folder / "repository"), sessions=1, scratch=str(folder)))


@pytest.fixture
def processor(tmp_path):
    with opened(tmp_path) as processor:
        yield processor


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A processor for requests that change nothing."""
    with opened(tmp_path_factory.mktemp("shared")) as processor:
        yield processor


def post(processor, body, route=ROUTE, headers=None, **options):
    async def ask():
        lifecycle = Lifecycle()
        lifecycle.open(processor.host)
        app = create_admin(lifecycle, Metrics(lifecycle), **options)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8502") as client:
            answer = await client.post(route, json=body, headers=headers)
            trail = await client.get("/admin/audit", headers=headers)
            return answer, trail.text

    return asyncio.run(ask())


def sampled(processor):
    return [int(user) for e in processor.predictor.replica("small").sample.kept() for user in e.inputs["user"]]


def test_user_is_gone_and_others_stay(processor, caplog):
    for user in (USER, OTHER):
        processor.process(PredictRequest("small", make_inputs([user], seed=user % 100)))
    assert set(sampled(processor)) >= {USER, OTHER}
    with caplog.at_level(logging.INFO):
        reply, trail = post(processor, {"key": USER})
    assert reply.status_code == 200
    document = reply.json()
    assert (document["model"], document["inputs"], document["trainer"]) == ("small", ["user"], "")
    assert document["erased"]["kept_requests"] == 1
    assert document["not_reached"] == [NO_TRAINER, *NOT_REACHED]
    assert USER not in sampled(processor)
    assert OTHER in sampled(processor)
    gc.collect()
    assert "erase a user of 'small': done" in caplog.text
    assert str(USER) not in caplog.text + trail + reply.text


def test_key_may_be_text_and_its_input_named(processor):
    reply, _ = post(processor, {"key": str(USER), "input": "user"})
    assert reply.json()["inputs"] == ["user"]


def test_trainer_of_the_repository_is_asked(processor, tmp_path):
    (tmp_path / "repository" / ".checkpoints" / "small").mkdir(parents=True)
    reply, _ = post(processor, {"key": USER})
    assert reply.json()["trainer"] == ASKED
    assert NO_TRAINER not in reply.json()["not_reached"]
    assert USER in Erasures.of_model(tmp_path / "repository", "small").asked()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "body.key: expected a value, got nothing"),
        ({"key": ""}, 400, "body.key: expected a string of 1 to 1024 bytes, or an integer"),
        ({"key": True}, 400, "body.key: expected a string"),
        ({"key": 1.5}, 400, "body.key: expected a string"),
        ({"key": None}, 400, "body.key: expected a string"),
        ({"key": ["secret"]}, 400, "body.key: expected a string"),
        ({"key": "secret" * 1000}, 400, "body.key: expected a string of 1 to 1024 bytes"),
        ({"key": "secret" * 20000}, 413, "body: expected at most 65536"),
        ({"key": "a", "keys": []}, 400, "body.keys: unknown field"),
        ({"key": "secret", "input": 3}, 400, "body.input: expected a string"),
        ({"key": "secret", "input": "tags"}, 400, "body.input: expected an input of int64 or strings"),
        ({"key": "secret", "input": "x" * 300}, 400, "body.input: expected at most 256"),
        ([], 400, "body: "),
    ],
)  # fmt: skip
def test_invalid_request_is_refused_by_name_without_the_key(shared, body, status, message):
    reply, trail = post(shared, body)
    assert (reply.status_code, list(reply.json())) == (status, ["error"])
    assert message in reply.json()["error"]
    assert "secret" not in reply.text + trail


def test_unknown_model_is_404(shared):
    reply, _ = post(shared, {"key": "secret"}, "/admin/models/none/erase")
    assert reply.status_code == 404
    assert "secret" not in reply.text


def test_key_without_the_scope_is_403(processor):
    keys, writer = ApiKeys().added("writer", ["admin:write", "admin:read"])
    keys, reader = keys.added("reader", ["admin:read", "predict"])
    for secret, status in ((reader, 403), (writer, 200), ("wrong", 401)):
        headers = {"authorization": f"Bearer {secret}"}
        reply, _ = post(processor, {"key": USER}, guard=guard_of(keys), headers=headers)
        assert reply.status_code == status
    assert str(USER) not in reply.text


def test_unread_key_is_in_no_recording(processor, monkeypatch):
    manifest = processor.host.catalogue["small"].pick(None).manifest
    monkeypatch.setattr(type(manifest), "read_inputs", [i for i in manifest.inputs if i.name != "user"])
    reply, _ = post(processor, {"key": USER}, recordings="recordings")
    assert reply.json()["not_reached"][0] == NO_COLUMN


def test_model_with_several_keys_asks_which(processor, monkeypatch):
    from freshet_serving.serving.extensions.admin import erase_route

    monkeypatch.setattr(erase_route, "user_inputs", lambda manifest: ("user", "city"))
    reply, _ = post(processor, {"key": USER})
    assert reply.status_code == 400
    wanted = "body.input: expected the name of the input with users' keys, one of 'user', 'city', got nothing"
    assert reply.json()["error"] == wanted
