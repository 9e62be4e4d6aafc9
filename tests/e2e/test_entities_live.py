"""Requests of keys alone on a live server, while deltas of features, rows and weights come and are rolled back."""

import json
import random
from dataclasses import replace
from functools import cache

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest

from freshet_serving import Client, Publisher
from tests.e2e.askers import askers, problems
from tests.e2e.dialects import DIALECTS
from tests.e2e.servers import ALONE, LiveServer
from tests.serving.access.keyed import Keyed
from tests.support import entities
from tests.support.packages import make_inputs, make_weights, reference, rows_of, tag_id
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("every row and every feature gets a value that tells the delta, so all scores move"),
]

STEPS, LAST = 16, 4
USERS = list(range(20))
PROBE = [0, 3, 7, 3, 12, 55]
TAG_MODEL = dict.fromkeys([tag_id(t) for t in "abc"], 0)
KNOWN, FEATURED = dict.fromkeys(entities.KNOWN, 0), [0, 3, 5, 7, 12]
KEPT = replace(entities.ENTITY, text_nbytes=64)
of_layouts = pytest.mark.parametrize("layout", [ALONE, ("--workers", "2")], ids=["alone", "workers"])


def expected(step, contents=KNOWN):
    """Scores of the probe by plain numpy once delta `step` is served: nothing of them is read from the server."""
    sent = entities.sent(PROBE, contents)
    splits = sent["tags"].row_splits
    words = [tag.decode() for tag in sent["tags"].values.tolist()]
    tags = [words[a:b] for a, b in zip(splits, splits[1:])]
    rows = dict.fromkeys(USERS, step)
    return reference(rows, TAG_MODEL, make_weights(step), PROBE, tags, sent["floats"])


@cache
def recorded(user, content):
    """Return a recording's features of a user by their content number; none where it is None."""
    had = entities.columns([] if content is None else [user], content)
    floats = had["floats"][0] if len(had["floats"]) else np.full(4, np.nan, np.float32)
    return [tag.encode() for tags in had["tags"] for tag in tags[:3]], floats


@of_layouts
def test_every_reply_and_recorded_row_is_of_the_generation_that_it_names(tmp_path, layout):
    entities.write_package(tmp_path / "repository", entity=KEPT)
    contents = {"1.0": KNOWN}
    scores, line, draw = {"1.0": expected(0)}, ["1.0"], random.Random("deltas")
    options = ("--delta-guard", "off", "--record", str(tmp_path / "recordings"), "--record-share", "1.0")
    with (
        LiveServer(tmp_path / "repository", *layout, *options, log=tmp_path / "serve.log") as live,
        askers(live, {"user": PROBE}, scores.get, count=3) as running,
        # Known and unknown users, so many that deltas come while their features are gathered.
        askers(live, {"user": [*range(30)] * 8}, count=1, pause_s=0.02) as large,
    ):
        publisher = Publisher(tmp_path / "repository", "small")
        for step in range(1, STEPS + 1):
            publisher.take_served()
            generation, users = f"1.{step}", draw.sample(FEATURED, 3)
            contents[generation] = contents[line[-1]] | dict.fromkeys(users, step)
            scores[generation] = expected(step, contents[generation])
            published = publisher.publish(
                rows={"user": (np.array(USERS), rows_of(USERS, step))},
                dense=make_weights(step),
                entities={"profile": (users, entities.columns(users, step))},
            )
            assert str(published) == generation
            until(lambda one=generation: any(one in asker.generations for asker in running) or problems(running))
            line.append(generation)
            if step % LAST == 0:
                undone = live.post_json("/admin/models/small/rollback", {"generation": line[-3]})
                assert undone[0] == 200, undone
                del line[-2:]
    assert problems([*running, *large]) == []
    named = set()
    for path in (tmp_path / "recordings").glob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            named.add(row["freshet.generation"])
            tags, floats = recorded(row["user"], contents[row["freshet.generation"]].get(row["user"]))
            assert row["tags"] == tags
            np.testing.assert_array_equal(np.array([row[f"f{n}"] for n in range(4)], np.float32), floats)
    assert len(named) > 3


def test_keys_alone_are_answered_and_unknown_ones_are_named(tmp_path):
    """Unknown keys get defaults, or, by a model's policy, are dropped or marked."""
    for model, entity in (
        ("small", entities.ENTITY),
        ("drop", replace(entities.ENTITY, unknown="drop")),
        ("mark", replace(entities.ENTITY, unknown="mark")),
    ):
        entities.write_package(tmp_path / "repository", entity=entity, model=model)
    scores, inputs = expected(0), {"user": np.array(PROBE)}
    with LiveServer(tmp_path / "repository", *ALONE, log=tmp_path / "serve.log") as live:
        for name, ask in DIALECTS.items():
            np.testing.assert_allclose(np.ravel(ask(live, "small", inputs).output("score")), scores, atol=1e-5)
            for model, header in (("drop", "x-dropped-rows"), ("mark", "x-unknown-rows")):
                reply = ask(live, model, inputs)
                rows = scores[:4] if model == "drop" else scores
                np.testing.assert_allclose(np.ravel(reply.output("score")), rows, atol=1e-5, err_msg=name)
                if name.startswith("tensorflow"):
                    assert reply.headers[header] == "4-5", name
        for scheme in ("http", "grpc"):
            with Client(live.address(scheme)) as client:
                assert client.predict("drop", inputs).dropped_rows == (4, 5)
                assert client.predict("mark", inputs).unknown_rows == (4, 5)
        body = json.dumps({"inputs": {"tags": [["a"]]}})
        status, _, answer = live.request("POST", "/v1/models/small:predict", body)
        assert (status, "user" in json.loads(answer)["error"]) == (400, True)
        floats = make_inputs(PROBE)["floats"]
        over = DIALECTS["tensorflow columns"](live, "small", inputs | {"floats": floats}).output("score")
        assert not np.allclose(np.ravel(over), scores, atol=1e-5)


def shown(headers):
    """The values in x-features."""
    found = json.loads(headers["x-features"])
    return found["tags"], found["floats"]


@of_layouts
def test_values_of_entities_return_in_every_protocol_with_their_scope(tmp_path, layout):
    keyed = Keyed(tmp_path)
    allowed, others = keyed.add("both", ["predict", "features"]), keyed.add("ctr", ["predict"])
    entities.write_package(tmp_path / "repository", entity=KEPT)
    tags, floats = entities.columns([0])["tags"], entities.columns([0])["floats"].tolist()
    wanted = ([tags[0][:3], []], [floats[0], [None] * 4])
    inputs, asked = {"user": np.array([0, 55])}, {"x-return-features": "1"}
    options = (*layout, "--api-keys", str(keyed.path))
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as live:
        for name, ask in DIALECTS.items():
            if name.startswith("client"):
                continue
            assert shown(ask(live, "small", inputs, allowed | asked).headers) == wanted, name
            assert "x-features" not in ask(live, "small", inputs, allowed).headers
            with pytest.raises((AssertionError, grpc.RpcError), match="the scope features"):
                ask(live, "small", inputs, others | asked)
        body = json.dumps({"inputs": {"user": [0, 55]}})
        status, headers, _ = live.request("POST", "/v1/models/small:predict", body, others | asked)
        assert (status, "x-features" in headers) == (403, False)
        # What is sent is not looked up.
        body = {"inputs": {"user": [0], "tags": [["z"]]}}
        found = live.request("POST", "/v1/models/small:predict", json.dumps(body), allowed | asked)[1]["x-features"]
        assert json.loads(found).keys() == {"floats"}
        for scheme in ("http", "grpc"):
            with Client(live.address(scheme)) as client:
                found = client.predict("small", inputs, headers=allowed | asked).features
                assert (found["tags"], found["floats"]) == wanted
                assert client.predict("small", inputs, headers=allowed).features == {}
