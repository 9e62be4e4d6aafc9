"""Requests about a kept user through the HTTP application: both dialects, over a model in process."""

import json

import numpy as np
import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.serving.access.access_guard import AccessGuard
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.support.ranked import MODEL, write_ranked

PREDICT, INFER = f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer"
ITEMS = [5, 6, 7]
CANDIDATES = [{"name": "item", "shape": [3], "datatype": "INT64", "data": ITEMS}]


def history(*items):
    splits = {"name": "history.row_splits", "shape": [2], "datatype": "INT64", "data": [0, len(items)]}
    return [{"name": "history.item", "shape": [len(items)], "datatype": "INT64", "data": list(items)}, splits]


def opened(folder, **options):
    write_ranked(folder)
    return Processor.initialize(ProcessorConfig(str(folder), sessions=1, **{"user_state_mb": 4, **options}))


@pytest.fixture(scope="module", params=[{}, {"compute": "inline"}], ids=["threads", "inline"])
def app(request, tmp_path_factory):
    with opened(tmp_path_factory.mktemp("ranked"), **request.param) as processor:
        yield serve(processor.predictor)[0]


def post(app, path, document, headers=None):
    return send(app, "POST", path, json.dumps(document).encode(), headers or {})


def infer(app, inputs, headers=None, **parameters):
    return post(app, INFER, {"inputs": inputs, "parameters": parameters}, headers)


def score(reply):
    assert reply.status == 200, reply.body
    return json.loads(reply.body)["outputs"][0]["data"]


def whole(app, *items):
    return score(infer(app, [*history(*items), *CANDIDATES]))


def test_candidates_alone_are_scored_as_if_the_user_had_come_along(app):
    prepared = infer(app, history(1, 2), sequence_id=7, sequence_start=True)
    (output, *_) = json.loads(prepared.body)["outputs"]
    assert output["shape"] == [0, 1]
    assert prepared.headers["x-model-generation"] == "1.0"
    reply = infer(app, CANDIDATES, sequence_id=7)
    assert score(reply) == pytest.approx(whole(app, 1, 2), rel=1e-5)
    assert reply.headers["x-sequence-version"] == prepared.headers["x-sequence-version"]


def test_events_are_appended_alone_or_with_candidates(app):
    infer(app, history(1, 2), sequence_id="u", sequence_start=True)
    appended = infer(app, history(3), sequence_id="u")
    assert json.loads(appended.body)["outputs"][0]["shape"] == [0, 1]
    assert score(infer(app, CANDIDATES, sequence_id="u")) == pytest.approx(whole(app, 1, 2, 3), rel=1e-5)
    both = score(infer(app, [*history(4), *CANDIDATES], sequence_id="u"))
    assert both == pytest.approx(whole(app, 1, 2, 3, 4), rel=1e-5)


def test_start_with_candidates_prepares_and_scores(app):
    first = score(infer(app, [*history(1, 2), *CANDIDATES], sequence_id=7, sequence_start=True))
    assert first == pytest.approx(whole(app, 1, 2), rel=1e-5)
    again = score(infer(app, [*history(9), *CANDIDATES], sequence_id=7, sequence_start=True))
    assert again == pytest.approx(whole(app, 9), rel=1e-5)


def test_end_answers_and_then_forgets(app):
    infer(app, history(1, 2), sequence_id=7, sequence_start=True)
    assert score(infer(app, CANDIDATES, sequence_id=7, sequence_end=True)) == pytest.approx(whole(app, 1, 2), rel=1e-5)
    assert infer(app, CANDIDATES, sequence_id=7).status == 410
    assert infer(app, [], sequence_id=7, sequence_end=True).status == 200


def test_user_that_is_gone_is_told_from_an_unknown_model(app):
    reply = infer(app, CANDIDATES, sequence_id="personal")
    assert reply.status == 410
    assert reply.json()["error"].startswith("sequence_id: nothing is kept under it")
    assert b"personal" not in reply.body
    assert infer(app, history(1), sequence_id="personal").status == 410


def test_replace_and_remove_correct_what_is_kept(app):
    infer(app, history(1, 2, 3), sequence_id=7, sequence_start=True)
    removed = score(infer(app, [*history(2), *CANDIDATES], sequence_id=7, sequence_remove=True))
    assert removed == pytest.approx(whole(app, 1, 3), rel=1e-5)
    replaced = score(infer(app, [*history(4, 5), *CANDIDATES], sequence_id=7, sequence_replace=True))
    assert replaced == pytest.approx(whole(app, 4, 5), rel=1e-5)


def test_expected_version_keeps_a_repeated_append_from_doubling(app):
    version = int(infer(app, history(1), sequence_id=7, sequence_start=True).headers["x-sequence-version"])
    assert infer(app, history(2), sequence_id=7, sequence_version=version).status == 200
    again = infer(app, history(2), sequence_id=7, sequence_version=version)
    assert again.status == 409
    assert again.json()["error"].startswith("sequence_version: expected the user's, ")
    assert score(infer(app, CANDIDATES, sequence_id=7)) == pytest.approx(whole(app, 1, 2), rel=1e-5)


def test_release_of_another_version_is_a_conflict(app):
    version = int(infer(app, history(1), sequence_id=7, sequence_start=True).headers["x-sequence-version"])
    infer(app, history(2), sequence_id=7)
    assert infer(app, [], sequence_id=7, sequence_end=True, sequence_version=version).status == 409
    assert score(infer(app, CANDIDATES, sequence_id=7)) == pytest.approx(whole(app, 1, 2), rel=1e-5)


@pytest.mark.parametrize("none", [0, ""])
def test_no_sequence_is_an_ordinary_request(app, none):
    reply = infer(app, [*history(1), *CANDIDATES], sequence_id=none, sequence_start=True)
    assert score(reply) == pytest.approx(whole(app, 1), rel=1e-5)
    assert "x-sequence-version" not in reply.headers
    assert infer(app, CANDIDATES, sequence_id=none).status == 400


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"sequence_id": 1.5}, "parameters.sequence_id"),
        ({"sequence_id": True}, "parameters.sequence_id"),
        ({"sequence_id": None, "sequence_start": True}, "history.item is missing"),
        ({"sequence_id": 2**64}, "parameters.sequence_id: expected 64 bits of a whole number, or 256 bytes of text"),
        ({"sequence_id": "x" * 257}, "or 256 bytes of text, got 257 bytes"),
        ({"sequence_id": [1]}, "parameters.sequence_id"),
        ({"sequence_id": 1, "sequence_start": 1}, "parameters.sequence_start: expected a boolean"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "parameters.sequence_end: expected a boolean"),
        ({"sequence_id": 1, "sequence_start": True, "sequence_remove": True}, "parameters: expected one of"),
        ({"sequence_id": 1, "sequence_version": -1}, f"expected a whole number from 0 to {2**53 - 1}"),
        ({"sequence_id": 1, "sequence_version": "1"}, "parameters.sequence_version"),
    ],
)
def test_wrong_parameters_are_refused_by_name(app, parameters, named):
    reply = infer(app, CANDIDATES, **parameters)
    assert reply.status == 400
    assert named in reply.json()["error"]


def test_lists_of_every_form_are_appended(app):
    infer(app, history(1), sequence_id=7, sequence_start=True)
    padded = [
        {"name": "history.item", "shape": [1, 4], "datatype": "INT64", "data": [2, 3, 0, 0]},
        {"name": "history.lengths", "shape": [1], "datatype": "INT64", "data": [2]},
    ]
    own = [history(4)[0], {**history(4)[1], "name": "history.item.row_splits"}]
    for events in (padded, own):
        assert infer(app, events, sequence_id=7).status == 200
    assert score(infer(app, CANDIDATES, sequence_id=7)) == pytest.approx(whole(app, 1, 2, 3, 4), rel=1e-5)


def test_no_candidates_have_no_scores(app):
    infer(app, history(1), sequence_id=7, sequence_start=True)
    none = [{"name": "item", "shape": [0], "datatype": "INT64", "data": []}]
    assert score(infer(app, none, sequence_id=7)) == []


def test_user_of_several_rows_is_refused(app):
    rows = [
        {"name": "history.item", "shape": [2], "datatype": "INT64", "data": [1, 2]},
        {"name": "history.row_splits", "shape": [3], "datatype": "INT64", "data": [0, 1, 2]},
    ]
    reply = infer(app, rows, sequence_id=1, sequence_start=True)
    assert reply.status == 400
    assert reply.json()["error"] == "input 'history.item': expected one list of events, that of the user"
    assert infer(app, CANDIDATES, sequence_id=1).status == 410


def test_best_items_are_those_of_the_kept_user(app):
    infer(app, history(1, 2), sequence_id=7, sequence_start=True)
    top = {"x-top-items": "3"}
    kept, sent = infer(app, [], top, sequence_id=7), infer(app, history(1, 2), top)
    assert kept.status == 200, kept.body
    assert score(kept) == score(sent)
    both = infer(app, history(3), top, sequence_id=7)
    assert score(both) == score(infer(app, history(1, 2, 3), top))


def test_tensorflow_serving_names_verbs_by_signatures(app):
    def predict(inputs, signature="", **more):
        return post(app, PREDICT, {"signature_name": signature, "inputs": inputs, **more})

    prepared = predict({"sequence_id": "7", "history.item": [[1, 2]]}, "prepare")
    assert prepared.status == 200, prepared.body
    assert prepared.json() == {"outputs": {"score": [], "user_vector": []}}
    assert predict({"sequence_id": ["7"], "history.item": [[3]]}, "append").status == 200
    scored = predict({"sequence_id": "7", "item": ITEMS})
    found = np.array(scored.json()["outputs"]["score"]).ravel().tolist()
    assert found == pytest.approx(whole(app, 1, 2, 3), rel=1e-5)
    # By rows, and over the other dialect, the same user.
    rows = post(app, PREDICT, {"instances": [{"sequence_id": "7", "item": item} for item in ITEMS]})
    assert [row["score"][0] for row in rows.json()["predictions"]] == pytest.approx(found, rel=1e-5)
    assert score(infer(app, CANDIDATES, sequence_id=7)) == pytest.approx(found, rel=1e-5)
    assert predict({"sequence_id": "7", "history.item": [[3]]}, "remove").status == 200
    assert predict({"sequence_id": "7", "history.item": [[8]]}, "replace").status == 200
    assert predict({"sequence_id": "7"}, "release").status == 200
    assert predict({"sequence_id": "7", "item": ITEMS}).status == 410


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"instances": [{"sequence_id": "1", "item": 1}, {"sequence_id": "2", "item": 2}]}, "sequence_id"),
        ({"instances": [{"sequence_id": "1", "item": 1}, {"item": 2}]}, "sequence_id"),
        ({"inputs": {"sequence_id": ["1", "2"], "item": [1, 2]}}, "sequence_id"),
        ({"inputs": {"sequence_id": [], "item": [1, 2]}}, "sequence_id"),
        ({"inputs": {"sequence_id": {"a": 1}, "item": [1, 2]}}, "sequence_id"),
        ({"inputs": {"sequence_id": "1", "sequence_version": "x", "item": [1]}}, "sequence_version"),
        ({"signature_name": "prepare", "inputs": {"history.item": [[1]], "item": [1]}}, "signature"),
    ],
)
def test_wrong_names_of_tensorflow_serving_are_refused(app, document, named):
    reply = post(app, PREDICT, document)
    assert reply.status == 400
    assert named in reply.json()["error"]


def test_server_without_memory_for_users_names_the_option(tmp_path):
    with opened(tmp_path, user_state_mb=0) as processor:
        app = serve(processor.predictor)[0]
        for inputs in (CANDIDATES, history(1)):
            reply = infer(app, inputs, sequence_id=7)
            assert reply.status == 400
            assert "freshet serve --user-state-mb" in reply.json()["error"]
        complete = [*history(1), *CANDIDATES]
        for parameters in ({"sequence_start": True}, {}, {"sequence_end": True}):
            assert score(infer(app, complete, sequence_id=7, **parameters)) == whole(app, 1)


class Guard(AccessGuard):
    def __init__(self):
        pass

    def name_of(self, authorization):
        return (authorization or b"").decode()


def test_ids_of_another_key_are_unknown(tmp_path):
    with opened(tmp_path) as processor:
        app, *_ = serve(processor.predictor)
        app.serving_context.guard = Guard()
        one, two = {"authorization": "one"}, {"authorization": "two"}
        assert infer(app, history(1, 2), one, sequence_id=7, sequence_start=True).status == 200
        assert infer(app, CANDIDATES, two, sequence_id=7).body == infer(app, CANDIDATES, two, sequence_id=8).body
        assert infer(app, [], two, sequence_id=7, sequence_end=True).status == 200
        assert infer(app, CANDIDATES, one, sequence_id=7).status == 200


def test_request_counts_to_the_share_of_its_api_key(tmp_path):
    with opened(tmp_path) as processor:
        app, *_ = serve(processor.predictor)
        app.serving_context.guard = Guard()
        seen, submit = [], processor.predictor.submit

        def watch(request, done, replica=None):
            seen.append(request.sender)
            submit(request, done, replica)

        processor.predictor.submit = watch
        assert infer(app, [*history(1), *CANDIDATES], {"authorization": "one"}).status == 200
        assert infer(app, [*history(1), *CANDIDATES]).status == 200
    assert seen == ["one", ""]
