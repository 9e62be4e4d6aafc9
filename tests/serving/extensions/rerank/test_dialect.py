"""Requests in the form of rerankers: a user and item ids in, the ids in order out."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.engine import PredictReply, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Feature, Input, Output
from freshet_serving.serving.extensions.rerank import dialect
from freshet_serving.serving.http.dialects import DIALECTS, extension_codec
from freshet_serving.serving.request_headers import TOP_ITEMS
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.support.ranked import MODEL, best, manifest, write_ranked

LIMITS = RequestLimits()
QUERY = {"history.item": [1, 2]}


@pytest.fixture
def app(tmp_path):
    write_ranked(tmp_path)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        yield serve(processor.predictor)[0]


def post(app, document, path="/v1/rerank", headers=None):
    return send(app, "POST", path, json.dumps(document).encode(), headers or {})


def decoded(described, headers=None, **document):
    body = json.dumps({"query": QUERY, "documents": [5], **document}).encode()
    return dialect.decode(body, headers or {}, described, LIMITS, None)


def with_item_input(dtype="int64", side="item", more=()):
    """The manifest of the ranking model with another item input, and further inputs."""
    plain = manifest(notes={})
    feature = replace(plain.features[0], side=side)
    inputs = [Input("item", dtype), *plain.inputs[1:], *(Input(f.input, "int64") for f in more)]
    return replace(plain, inputs=inputs, features=[feature, *more])


def more_feature(name, side):
    return Feature(name, "id", name, side=side, table="item", offset=6, width=6)


def test_dialect_of_the_port_is_that_of_the_extension():
    assert (DIALECTS["rerank"].decode, DIALECTS["rerank"].encode) == (dialect.decode, dialect.encode)


def test_request_is_refused_by_name_without_the_extension(without_extensions):
    without_extensions("rerank")
    for function in extension_codec("rerank", "rerank", 3):
        with pytest.raises(BadInput, match=r"^:rerank needs the extension 'rerank'"):
            function(b"", {}, None, None, None)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", f"/v1/models/{MODEL}:rerank"])
def test_documents_are_ordered_by_the_scores_of_the_model(app, path):
    ids, scores = best(dict.fromkeys(range(40), 0), 0, [1, 2], 40)
    documents = sorted(ids.tolist())
    reply = post(app, {"model": MODEL, "query": QUERY, "documents": documents, "top_n": 5}, path)
    answer = json.loads(reply.body)
    assert [documents[r["index"]] for r in answer["results"]] == ids[:5].tolist()
    assert [r["document"]["text"] for r in answer["results"]] == [str(i) for i in ids[:5]]
    assert [r["relevance_score"] for r in answer["results"]] == pytest.approx(scores[:5].tolist(), abs=1e-5)
    assert answer["model"] == MODEL
    assert reply.headers["x-model-generation"] == "1.0"


def test_text_is_read_as_the_query_and_the_ids_that_it_spells(app):
    spelled = {"model": MODEL, "query": json.dumps(QUERY), "documents": ["5", {"text": "7"}, {"id": 9}]}
    typed = {"model": MODEL, "query": QUERY, "documents": [5, 7, 9]}
    first, second = (json.loads(post(app, document).body)["results"] for document in (spelled, typed))
    assert [r["index"] for r in first] == [r["index"] for r in second]


def test_body_may_be_compressed(app):
    body = json.dumps({"model": MODEL, "query": QUERY, "documents": [5, 7]}).encode()
    plain = send(app, "POST", "/v1/rerank", body, {})
    assert send(app, "POST", "/v1/rerank", gzip.compress(body), {"content-encoding": "gzip"}).body == plain.body


def test_long_bodies_name_the_model_in_their_path(app):
    long = {"model": MODEL, "query": QUERY, "documents": list(range(60_000))}
    refused = post(app, long)
    assert (refused.status, "/v1/models/MODEL:rerank" in json.loads(refused.body)["error"]) == (413, True)
    assert post(app, long | {"top_n": 1}, f"/v1/models/{MODEL}:rerank").status == 200


@pytest.mark.parametrize(
    ("document", "status", "error"),
    [
        ({}, 400, "model: expected the name of a model, got null"),
        ({"model": 7}, 400, "model: expected the name of a model, got a number"),
        ({"model": "x" * 300}, 400, "model: expected the name of a model"),
        ({"model": "none", "query": QUERY, "documents": [1]}, 404, "none"),
        ({"model": MODEL, "documents": [1]}, 400, "query: expected an object of"),
        ({"model": MODEL, "query": "shoes", "documents": [1]}, 400, "query: expected an object"),
        ({"model": MODEL, "query": "{", "documents": [1]}, 400, "query: expected an object, or its JSON text"),
        ({"model": MODEL, "query": {"color": 1}, "documents": [1]}, 400, "query: expected inputs of the model, got"),
        ({"model": MODEL, "query": {}, "documents": [1]}, 400, "query: lacks 'history.item'"),
        ({"model": MODEL, "query": {"history.item": 3}, "documents": [1]}, 400, "query: history.item: expected a list"),
        ({"model": MODEL, "query": QUERY, "documents": []}, 400, "documents: expected an array"),
        ({"model": MODEL, "query": QUERY, "documents": {"a": 1}}, 400, "documents: expected an array of item ids"),
        ({"model": MODEL, "query": QUERY, "documents": ["red shoes"]}, 400, "documents: expected ids of 'item'"),
        ({"model": MODEL, "query": QUERY, "documents": ["9" * 40]}, 400, "documents: expected ids of 'item'"),
        ({"model": MODEL, "query": QUERY, "documents": ["9" * 20]}, 400, "documents: item: expected"),
        ({"model": MODEL, "query": QUERY, "documents": [1.5]}, 400, "documents: "),
        ({"model": MODEL, "query": QUERY, "documents": [True]}, 400, "documents: "),
        ({"model": MODEL, "query": QUERY, "documents": [None]}, 400, "documents: "),
        ({"model": MODEL, "query": QUERY, "documents": [[1]]}, 400, "documents: expected ids of 'item', got a list"),
        ({"model": MODEL, "query": QUERY, "documents": [{"id": [1]}]}, 400, "documents: expected ids of 'item'"),
        ({"model": MODEL, "query": QUERY, "documents": [1], "top_n": 0}, 400, "top_n: expected a whole number from 1"),
        ({"model": MODEL, "query": QUERY, "documents": [1], "top_n": True}, 400, "top_n: expected a whole number"),
        ({"model": MODEL, "query": QUERY, "documents": [1], "return_documents": 1}, 400, "return_documents: expected"),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused_by_field(app, document, status, error):
    reply = post(app, document)
    assert reply.status == status
    assert error in json.loads(reply.body)["error"]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"model": '])
def test_bodies_that_are_no_objects_are_refused(app, body):
    assert send(app, "POST", "/v1/rerank", body, {}).status == 400


def test_request_for_the_best_items_of_the_table_is_another_one():
    with pytest.raises(BadInput, match=r"^x-top-items: expected none"):
        decoded(manifest(), {TOP_ITEMS: b"3"})


def test_item_is_the_input_of_its_side_that_the_query_leaves_out():
    user = more_feature("user", "user")
    inputs, _ = decoded(with_item_input(more=[user]), query={**QUERY, "user": 3})
    assert inputs["item"].tolist() == [5]
    with pytest.raises(BadInput, match="query: lacks 'user'"):
        decoded(with_item_input(more=[user]))


def test_imported_models_without_sides_have_one_input_beside_the_query():
    user = more_feature("user", "context")
    described = with_item_input(side="context", more=[user])
    assert decoded(described, query={**QUERY, "user": 3})[0]["item"].tolist() == [5]
    with pytest.raises(BadInput, match=r"documents: expected a model whose items have one id, got .*'item', 'user'"):
        decoded(described)


def test_items_with_two_inputs_are_refused_by_name():
    with pytest.raises(BadInput, match=r"reads 'item', 'brand' beside the query"):
        decoded(with_item_input(more=[more_feature("brand", "item")]))


def test_ids_of_strings_are_sent_as_they_are():
    inputs, _ = decoded(with_item_input("string"), documents=["a", {"id": "b"}, 7])
    assert [bytes(s) for s in inputs["item"].tolist()] == [b"a", b"b", b"7"]


def test_score_is_the_only_output_or_the_one_of_that_name():
    assert decoded(manifest())[1].output == "score"
    only = replace(manifest(), outputs=[Output("ctr")])
    assert decoded(only)[1].output == "ctr"
    several = replace(manifest(), outputs=[Output("ctr"), Output("cvr")])
    with pytest.raises(BadInput, match=r"^model: expected one with one output of one number, or one named 'score'"):
        decoded(several)


def encoded(scores, options, dropped=()):
    outputs = {"score": np.array(scores, np.float32)[:, None]}
    reply = PredictReply(outputs, Generation(1, 0), MODEL, dropped_rows=dropped)
    return json.loads(dialect.encode(reply, options, None)[0])["results"]


def test_equal_scores_keep_the_order_of_the_request_and_dropped_documents_have_no_result():
    options = dialect.RerankOptions("score", ["a", "b", "c", "d"], 4, False, None)
    assert [r["index"] for r in encoded([1, 3, 3], options, dropped=(1,))] == [2, 3, 0]


def test_results_repeat_documents_unless_told_not_to():
    options = dialect.RerankOptions("score", [7, {"id": 9, "title": "boots"}], 2, True, None)
    assert [r["document"] for r in encoded([1, 2], options)] == [{"id": 9, "title": "boots"}, {"text": "7"}]
    assert "document" not in encoded([1, 2], options._replace(returned=False))[0]


def test_too_many_documents_are_refused_by_the_limits():
    few = replace(LIMITS, max_rows=2)
    body = json.dumps({"query": QUERY, "documents": [1, 2, 3]}).encode()
    with pytest.raises(TooLarge, match="max_rows"):
        dialect.decode(body, {}, manifest(), few, None)
