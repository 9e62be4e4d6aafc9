"""POST /admin/models/{name}/explain over a processor: requests sent and recorded, and what is refused."""

import asyncio
import threading
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.extensions.online_features.store_settings import OnlineStoreSettings
from freshet_serving.processor.generation import Generation
from freshet_serving.serving.extensions.admin.api import create_admin
from freshet_serving.serving.extensions.admin.authorization import SHOWS_FEATURES
from freshet_serving.serving.extensions.explaining.explain_route import WAITING, ExplainRoute, ExplainSettings
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.processor.engines import USERS, processors, publish
from tests.support import entities, looked_up
from tests.support.packages import make_inputs, write_package
from tests.support.ranked import write_ranked

ROUTE = "/admin/models/small/explain"
REQUEST = {"user": [3, 2**53 + 1], "tags": [["a", "zz"], []], "floats": [[0.5, 1.0, -2.0, 0.0]] * 2}


class Asking:
    """An admin port over a processor that serves 1.2; ask() posts a JSON document to the route."""

    def __init__(self, processor, **settings):
        lifecycle = Lifecycle()
        lifecycle.open(processor.host)
        route = ExplainRoute(lifecycle, ExplainSettings(**settings))
        self.app = create_admin(lifecycle, Metrics(lifecycle), routes={"explain": route})

    def __call__(self, path=ROUTE, **request):
        return asyncio.run(self.ask(path, **request))

    async def ask(self, path=ROUTE, **request):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8502") as client:
            return await client.post(path, **request)


@contextmanager
def changed_twice(root):
    """Open a processor of a model that has two deltas."""
    write_package(root, users=USERS)
    with processors(root) as build:
        publish(root, 1, users=[3], dense_seed=1)
        publish(root, 2, users=[3, 4], tags=["zz"])
        yield build(undo_depth=1)


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    with changed_twice(tmp_path_factory.mktemp("repository")) as processor:
        yield processor


@pytest.fixture
def ask(processor):
    return Asking(processor)


class NoFeatures:
    """The Authorization of a key without the scope features."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app({**scope, SHOWS_FEATURES: False}, receive, send)


def test_looked_up_features_are_shown_with_their_scope_alone(tmp_path):
    looked_up.write_package(tmp_path / "repository")
    stores = (OnlineStoreSettings("main", "redis://127.0.0.1:1"),)
    with processors(tmp_path / "repository") as build:
        ask = Asking(build(online_stores=stores))
        ask.app = NoFeatures(ask.app)
        sent = {"user": [3], "f2": [0.0], "f3": [0.0], "user_id": [7]}
        refused = ask(json={"inputs": sent})
        assert "expected a key with the scope features, because 'tags' would be looked up" in error_of(refused, 403)
        whole = ask(json={"inputs": sent | {"tags": [["a"]], "f0": [1.0], "f1": [2.0]}})
        assert whole.status_code == 200, whole.text


def test_entity_features_are_shown_with_their_scope_alone(tmp_path):
    entities.write_package(tmp_path / "repository")
    with processors(tmp_path / "repository") as build:
        ask = Asking(build())
        assert ask(json={"inputs": {"user": [3]}}).status_code == 200
        ask.app = NoFeatures(ask.app)
        refused = ask(json={"inputs": {"user": [3]}})
        assert "expected a key with the scope features, because 'tags' would be looked up" in error_of(refused, 403)
        whole = ask(json={"inputs": {"user": [3], "tags": [["a"]], "floats": [[0.5, 1, 2, 3]]}})
        assert whole.status_code == 200, whole.text


def error_of(reply, status):
    assert reply.status_code == status, reply.text
    return reply.json()["error"]


def test_columns_and_rows_give_the_same_explanation(ask, processor):
    instances = [dict(zip(REQUEST, row)) for row in zip(*REQUEST.values())]
    by_columns, by_rows = (
        ask(json=body) for body in ({"inputs": REQUEST, "row": 1}, {"instances": instances, "row": 1})
    )
    assert (by_columns.status_code, by_rows.status_code) == (200, 200), by_columns.text
    one, other = by_columns.json(), by_rows.json()
    assert one["sides"][0]["inputs"] == other["sides"][0]["inputs"]
    assert one["sides"][0]["computed_by"] == "server, beside its sessions"
    (user,) = one["sides"][0]["inputs"]["user"]["ids"]
    assert (user["id"], user["key"], user["found"]) == (str(2**53 + 1), str(2**53 + 1), "default")
    assert by_columns.headers["cache-control"] == "no-store"


def test_explanation_compares_with_an_earlier_served_generation(ask):
    answer = ask(json={"inputs": REQUEST, "against": "1.1"}).json()
    assert [side["generation"] for side in answer["sides"]] == ["1.2", "1.1"]
    assert {m["feature"] for m in answer["moved"]} == {"user", "tags"}
    swapped = ask(json={"inputs": REQUEST, "generation": "1.1", "against": "1.2"}).json()
    np.testing.assert_allclose(swapped["change"]["score"], -np.array(answer["change"]["score"]), atol=1e-7)


def test_undone_generation_error_names_the_record_that_undid_it(tmp_path):
    with changed_twice(tmp_path) as processor:
        processor.rollback("small", Generation.parse("1.1"), "bad labels")
        told = error_of(Asking(processor)(json={"inputs": REQUEST, "against": "1.2"}), 409)
    assert told.startswith("generation 1.2 was undone by record 3, a rollback to 1.1; `freshet evaluate")
    assert "delta rollback" not in told


def test_explained_scores_equal_the_served_ones(ask, processor):
    inputs = make_inputs([3, 4, 99], tags=[["a"], ["zz"], []])
    served = processor.process(PredictRequest("small", inputs)).outputs["score"]
    sent = {"user": [3, 4, 99], "tags": [["a"], ["zz"], []], "floats": inputs["floats"].tolist()}
    for row in range(3):
        side = ask(json={"inputs": sent, "row": row}).json()["sides"][0]
        np.testing.assert_allclose(side["outputs"]["score"], served[row], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"inputs": REQUEST, "against": "1.0"}, 409, "not in the undo log, which goes back to 1.1"),
        ({"inputs": REQUEST, "generation": "7.1"}, 404, "version 7 of model 'small' is not loaded"),
        ({"inputs": REQUEST, "generation": "x"}, 400, "generation: expected 'version.step'"),
        ({"inputs": REQUEST, "row": 2}, 400, "row: expected 0 to 1, got 2"),
        ({"inputs": REQUEST, "row": -1}, 400, "body.row"),
        ({"inputs": REQUEST, "row": True}, 400, "body.row"),
        ({"inputs": REQUEST, "rows": 1}, 400, "body.rows: unknown field"),
        ({"inputs": REQUEST, "version": 1, "label": "live"}, 400, "one of version and label"),
        ({"inputs": REQUEST, "label": "live"}, 404, "label 'live'"),
        ({"inputs": REQUEST, "version": 2}, 404, "version 2"),
        ({"inputs": REQUEST, "request_id": "x"}, 400, "one of inputs, instances and request_id"),
        ({"row": 0}, 400, "one of inputs, instances and request_id"),
        ({"inputs": {"user": [1]}}, 400, "Missing named input"),
        ({"inputs": {**REQUEST, "user": ["x", "y"]}}, 400, "user"),
        ({"inputs": {**REQUEST, "floats": [[1e39] * 4] * 2}}, 400, "floats"),
        ({"request_id": "r1"}, 404, "this server records no requests"),
        ([], 400, "expected an object"),
    ],
)
def test_unanswerable_explanation_is_refused_in_one_line(ask, body, status, message):
    assert message in error_of(ask(json=body), status)


def test_request_about_a_kept_user_is_not_explained_without_what_is_kept(ask):
    assert error_of(ask(json={"inputs": REQUEST | {"sequence_id": "u"}}), 400).startswith(
        "sequence_id: expected a request"
    )


def test_bytes_that_are_not_a_request_are_refused(ask):
    assert "JSON" in error_of(ask(content=b"\x00"), 400)
    assert "at most" in error_of(ask(content=b" " * (5 << 20)), 413)
    assert "nobody" in error_of(ask("/admin/models/nobody/explain", json={"inputs": REQUEST}), 404)


def test_row_with_too_many_ids_is_refused(ask, monkeypatch):
    many = {**REQUEST, "tags": [["a"] * 5000, []]}
    assert ask(json={"inputs": many}).status_code == 200, "three of a list count, and are read"
    monkeypatch.setattr("freshet_serving.processor.extensions.explaining.explanation.MAX_IDS", 2)
    assert "expected a row of at most 2 ids, got 4" in error_of(ask(json={"inputs": many}), 413)


def test_recorded_request_is_explained_by_its_id(tmp_path):
    pytest.importorskip("pyarrow", reason="recording needs pyarrow")
    from freshet_serving.serving.extensions.recorder.request_recorder import RequestRecorder

    recorder = RequestRecorder(str(tmp_path / "recordings"), 1.0, 1 << 30, "w0")
    with changed_twice(tmp_path / "repository") as processor:
        processor.predictor.observers.add(recorder)
        inputs = make_inputs([3, 4], tags=[["zz"], ["a"]])
        answered = processor.process(PredictRequest("small", inputs, request_id="r1")).outputs["score"]
        publish(tmp_path / "repository", 3, users=[3])
        processor.poll()
        recorder.close()
        ask = Asking(processor, recordings=str(tmp_path / "recordings"))
        answer = ask(json={"request_id": "r1"}).json()
        assert [side["generation"] for side in answer["sides"]] == ["1.3", "1.2"]
        assert (answer["recorded"]["generation"], answer["recorded"]["request_id"]) == ("1.2", "r1")
        np.testing.assert_allclose(answer["recorded"]["outputs"]["score"], answered[0])
        np.testing.assert_allclose(answer["sides"][1]["outputs"]["score"], answered[0], atol=1e-6)
        as_of = ask(json={"request_id": "r1", "generation": "1.2"}).json()
        assert [side["generation"] for side in as_of["sides"]] == ["1.2"]
        assert "was not recorded" in error_of(ask(json={"request_id": "r2"}), 404)
        publish(tmp_path / "repository", 4, users=[3])
        processor.poll()
        out_of_reach = ask(json={"request_id": "r1"}).json()
        assert [side["generation"] for side in out_of_reach["sides"]] == ["1.4"]


def test_one_explanation_runs_at_a_time_and_few_wait(ask, monkeypatch):
    begun, leave, most = threading.Semaphore(0), threading.Event(), []
    running = []

    def slow(self, processor, name, body, shows_features):
        running.append(name)
        most.append(len(running))
        begun.release()
        leave.wait(30)
        running.pop()
        return {}

    monkeypatch.setattr("freshet_serving.serving.extensions.explaining.explain_route.ExplainRoute._explain", slow)

    async def crowd():
        asked = [asyncio.ensure_future(ask.ask(json={})) for _ in range(WAITING + 3)]
        await asyncio.to_thread(begun.acquire)
        while sum(task.done() for task in asked) < 2:
            await asyncio.sleep(0.001)
        refused = sum(task.done() for task in asked)
        leave.set()
        return [reply.status_code for reply in await asyncio.gather(*asked)], refused

    codes, refused = asyncio.run(crowd())
    assert sorted(codes) == [200] * (WAITING + 1) + [429] * 2
    assert (refused, max(most)) == (2, 1)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranked")
    write_ranked(root, recorded=range(0, 40, 2))
    with processors(root) as build:
        yield build()


def test_item_of_a_request_without_candidates_has_its_place(ranked):
    ask = Asking(ranked)
    inputs = {"history.item": [[3, 5]], "filter": ['{"stock": [0, null]}']}
    request = PredictRequest(
        "next", {"history.item": Ragged.of([[3, 5]]), "filter": Strings.of(inputs["filter"])}, top_items=5
    )
    best = ranked.process(request).outputs["item_ids"][0].tolist()
    for item in (best[2], str(best[2])):
        reply = ask("/admin/models/next/explain", json={"inputs": inputs, "item": item})
        assert reply.status_code == 200, reply.text
        told = reply.json()["sides"][0]["item"]
        assert (told["id"], told["place"]) == (str(best[2]), 3)
    odd = ask("/admin/models/next/explain", json={"inputs": inputs, "item": 7}).json()["sides"][0]["item"]
    assert odd["why_not"] == ["filter.stock: expected [0, null], got no record"]


def test_records_are_shown_with_the_scope_of_features_alone(ranked):
    ask = Asking(ranked)
    ask.app = NoFeatures(ask.app)
    refused = ask("/admin/models/next/explain", json={"inputs": {"history.item": [[3]]}, "item": 7})
    assert "expected a key with the scope features" in error_of(refused, 403)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"item": 3.5}, "item"),
        ({"item": True}, "item"),
        ({"item": ["3"]}, "item"),
        ({"item": "3" * 2000}, "item"),
        ({"item": "x"}, "item: expected a whole number"),
        ({"item": 3, "filter": "x"}, "body.filter: unknown field"),
    ],
)
def test_wrong_items_are_refused_by_name(ranked, more, message):
    asked = {"inputs": {"history.item": [[3]]}, **more}
    assert message in error_of(Asking(ranked)("/admin/models/next/explain", json=asked), 400)


def test_item_of_a_model_without_items_or_a_recorded_request_is_refused(ask):
    assert "expected a model that ranks items" in error_of(ask(json={"inputs": REQUEST, "item": 3}), 400)
    recorded = error_of(ask(json={"request_id": "r", "item": 3}), 400)
    assert "requests for the best items are not recorded" in recorded
