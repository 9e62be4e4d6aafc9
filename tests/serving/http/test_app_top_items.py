"""Requests for the best items through the HTTP application, over a model in process."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items.item_ranker import ItemRanker
from freshet_serving.serving.request_headers import top_items_of
from tests.serving.fakes import FakeProcessor, send
from tests.serving.http.data_app import BODY, serve
from tests.support.plain_filters import passes
from tests.support.ranked import MODEL, best, columns_of, write_ranked

PREDICT, INFER = f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer"
TOP = {"x-top-items": "3"}
HISTORY = [
    {"name": "history.item", "shape": [2], "datatype": "INT64", "data": [1, 2]},
    {"name": "history.row_splits", "shape": [2], "datatype": "INT64", "data": [0, 2]},
]
CANDIDATES = {"name": "item", "shape": [1], "datatype": "INT64", "data": [5]}


@contextmanager
def opened(factory, options=None, **package):
    """Open the HTTP application of a model that ranks items."""
    folder = factory.mktemp("ranked")
    write_ranked(folder, **package)
    with Processor.initialize(ProcessorConfig(str(folder), **(options or {"sessions": 1}))) as processor:
        yield serve(processor.predictor)[0]


@pytest.fixture(scope="module", params=[{"sessions": 1}, {"compute": "inline"}])
def app(request, tmp_path_factory):
    with opened(tmp_path_factory, request.param) as app:
        yield app


def post(app, path, document, headers=TOP):
    return send(app, "POST", path, json.dumps(document).encode(), headers)


def test_columns_and_rows_hold_ids_and_scores(app):
    ids, scores = best(dict.fromkeys(range(40), 0), 0, [1, 2], 3)
    reply = post(app, PREDICT, {"inputs": {"history.item": [[1, 2]]}})
    found = json.loads(reply.body)["outputs"]
    assert found["item_ids"] == [ids.tolist()]
    assert found["scores"][0] == pytest.approx(scores.tolist(), abs=1e-5)
    assert reply.headers["x-model-generation"] == "1.0"
    rows = json.loads(post(app, PREDICT, {"instances": [{"history.item": [1, 2]}]}).body)["predictions"]
    assert rows == [{"item_ids": found["item_ids"][0], "scores": found["scores"][0]}]


def test_requested_outputs_are_those_of_the_best_items(app):
    reply = post(app, INFER, {"inputs": HISTORY, "outputs": [{"name": "item_ids"}]})
    (output,) = json.loads(reply.body)["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("item_ids", "INT64", [1, 3])
    assert post(app, INFER, {"inputs": HISTORY, "outputs": [{"name": "score"}]}).status == 400


def test_candidates_are_ranked_with_the_header_and_required_without(app):
    with_candidates = {"inputs": [*HISTORY, CANDIDATES]}
    ranked = post(app, INFER, with_candidates)
    assert json.loads(ranked.body)["outputs"][0]["data"] == [5]
    assert ranked.headers["x-unfilled"] == "2"
    assert post(app, INFER, with_candidates, {}).status == 200
    assert post(app, INFER, {"inputs": HISTORY}, {}).status == 400


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_examples_are_refused(app, method):
    reply = post(app, f"/v1/models/{MODEL}:{method}", {"examples": [{"history.item": [1]}]})
    assert reply.status == 400
    assert b"x-top-items: expected a predict request, got classify or regress" in reply.body


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with opened(tmp_path_factory, recorded=range(0, 40, 2)) as app:
        yield app


def counting(wanted):
    columns = columns_of(range(0, 40, 2), 0)
    records = {key: {name: values[n] for name, values in columns.items()} for n, key in enumerate(range(0, 40, 2))}
    return {key for key in range(40) if passes(wanted, records.get(key))} - {1, 2}


WANTED = {"stock": [1, None], "category": {"not": ["b"]}}


def test_filters_and_lists_come_in_every_form(shop):
    text, top = json.dumps(WANTED), {"x-top-items": "40"}
    good = counting(WANTED)
    assert post(shop, PREDICT, {"inputs": {"history.item": [[1, 2]], "filter": []}}, top).status == 200
    columns = {"history.item": [[1, 2]], "filter": [text], "block": [[4, 6]], "seen": [[8]]}
    reply = post(shop, PREDICT, {"inputs": columns}, top)
    assert reply.status == 200, reply.body
    assert set(json.loads(reply.body)["outputs"]["item_ids"][0]) == good - {4, 6, 8}
    assert int(reply.headers["x-unfilled"]) == 40 - len(good - {4, 6, 8})
    instance = {"history.item": [1, 2], "filter": text, "allow": [0, 2, 4, 6, 8, 10]}
    (row,) = json.loads(post(shop, PREDICT, {"instances": [instance]}, top).body)["predictions"]
    assert set(row["item_ids"]) == good & {0, 4, 6, 8, 10}
    both = json.loads(post(shop, PREDICT, {"instances": [instance, instance | {"allow": [10]}]}, top).body)
    assert [len(row["item_ids"]) for row in both["predictions"]] == [len(good & {10})] * 2
    tensors = [
        {"name": "filter", "shape": [1], "datatype": "BYTES", "data": [text]},
        {"name": "block", "shape": [2], "datatype": "INT64", "data": [4, 6]},
        {"name": "block.row_splits", "shape": [2], "datatype": "INT64", "data": [0, 2]},
    ]
    reply = post(shop, INFER, {"inputs": [*HISTORY, *tensors]}, top)
    assert reply.status == 200, reply.body
    assert set(json.loads(reply.body)["outputs"][0]["data"]) == good - {4, 6}


@pytest.fixture(scope="module")
def sourced(tmp_path_factory):
    numbers = {item: (item % 7, item) for item in range(40)}
    with opened(tmp_path_factory, recorded=range(0, 40, 2), numbers=numbers) as app:
        yield app


def test_sources_come_in_every_form_without_a_user(sourced):
    columns = post(sourced, PREDICT, {"inputs": {"source": ["new"], "block": [[39]]}})
    assert json.loads(columns.body)["outputs"] == {
        "item_ids": [[38, 37, 36]], "scores": [[38 * 4096.0, 37 * 4096.0, 36 * 4096.0]],
    }  # fmt: skip
    assert columns.headers["x-model-generation"] == "1.0"
    rows = post(
        sourced, PREDICT, {"instances": [{"source": "popular", "seen": [6]}, {"source": "popular", "seen": []}]}
    )
    assert [row["item_ids"] for row in json.loads(rows.body)["predictions"]] == [[13, 20, 27], [6, 13, 20]]
    text = {"name": "source", "shape": [1], "datatype": "BYTES", "data": ["popular"]}
    reply = post(sourced, INFER, {"inputs": [text]})
    assert json.loads(reply.body)["outputs"][0]["data"] == [6, 13, 20]
    # A history that is sent is left out.
    sent = [text, *HISTORY, {"name": "filter", "shape": [1], "datatype": "BYTES", "data": ['{"stock": [0, null]}']}]
    reply = post(sourced, INFER, {"inputs": sent})
    assert json.loads(reply.body)["outputs"][0]["data"] == [6, 20, 34]


def test_items_like_one_are_what_follows_it(sourced):
    wanted = json.loads(post(sourced, PREDICT, {"inputs": {"history.item": [[7]]}}).body)["outputs"]
    assert json.loads(post(sourced, PREDICT, {"inputs": {"like": [7]}}).body)["outputs"] == wanted
    rows = json.loads(post(sourced, PREDICT, {"instances": [{"like": 7}, {"like": 7}]}).body)["predictions"]
    assert [row["item_ids"] for row in rows] == wanted["item_ids"] * 2
    tensor = {"name": "like", "shape": [1], "datatype": "INT64", "data": [7]}
    assert json.loads(post(sourced, INFER, {"inputs": [tensor]}).body)["outputs"][0]["data"] == wanted["item_ids"][0]
    reply = post(sourced, PREDICT, {"inputs": {"like": [4000]}})
    assert (json.loads(reply.body)["outputs"], reply.headers["x-unfilled"]) == ({"item_ids": [[]], "scores": [[]]}, "3")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"source": ["new"], "like": [3]}, "like: expected it with source 'like' alone, got source 'new'"),
        ({"source": ["new"], "history.item": [3]}, "history.item"),
        ({"like": [3.5]}, "like"),
        ({}, "history.item"),
        ({"block": [[1]]}, "history.item"),
    ],
)
def test_sources_without_their_inputs_are_refused_by_name(sourced, inputs, message):
    reply = post(sourced, PREDICT, {"inputs": inputs})
    assert reply.status == 400
    assert message in json.loads(reply.body)["error"]


def test_options_are_no_inputs_of_other_requests(shop):
    document = {"inputs": {"history.item": [[1, 2]], "item": [3], "filter": ["{}"]}}
    reply = post(shop, PREDICT, document, {})
    assert reply.status == 400 or "x-ignored-inputs" in reply.headers


def test_header_is_refused_without_the_extension(tmp_path, without_extensions):
    write_ranked(tmp_path)
    without_extensions("top_items")
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        reply = post(serve(processor.predictor)[0], PREDICT, {"inputs": {"history.item": [[1, 2]]}})
    assert reply.status == 400
    assert json.loads(reply.body)["error"].startswith("x-top-items needs the extension 'top_items': ")


def test_header_is_optional():
    assert top_items_of({}) == 0
    assert top_items_of({b"x-top-items": b"10000"}) == 10_000


def test_long_binary_prefix_is_not_checked_as_candidates():
    app, *_ = serve()
    route = type("Route", (), {"action": "infer", "model": "ctr", "version": None})
    with pytest.raises(Exception, match="inputs"):
        app.validate_prefix(route, {}, b'{"inputs": []}')
    app.validate_prefix(route, {b"x-top-items": b"5"}, b'{"inputs": []}')


def test_other_models_refuse_the_header():
    processor = FakeProcessor()
    processor.answerer = lambda attribute, subject="": ItemRanker(SimpleNamespace(), FakeClock())
    app, *_ = serve(processor)
    reply = send(app, "POST", "/v1/models/ctr:predict", BODY, TOP)
    assert reply.status == 400
    assert b"model 'ctr' version 3 cannot rank all items of a table" in reply.body
