"""The best items of a whole table over the network: every dialect, both layouts, with filters and by other sources."""

import json
import threading
from functools import cache

import grpc
import numpy as np
import pytest

from freshet_serving import Client, Ragged
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.package import TableDelta
from freshet_serving.processor.package.delta import write_delta
from tests.e2e.asking import INFER
from tests.e2e.dialects import DIALECTS, kserve_request
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import write_package
from tests.support.plain_filters import passes
from tests.support.ranked import MODEL, NUMBERS, best, columns_of, numbers_of, ranked_delta, write_ranked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("each delta has a matrix of its own, so all scores move"),
]

ITEMS, RECORDED = range(3000), range(0, 3000, 2)
USERS = [[3, 4, 5], [], [7]]
K, ALL = 6, len(ITEMS)
TOP, TOP_ALL = {"x-top-items": str(K)}, {"x-top-items": str(ALL)}
LEAST = -(2**53) - 1
"""An id that no float holds, and the best item of users without events: their scores are equal."""
PAIRS = {item: (item * 37 % 101 / 8, item / 4096) for item in ITEMS}
HISTORY, BLOCK = [3, 4, 5], [10, 12, 11]
FILTER = {"stock": [1, None], "category": ["a", "b"], "tags": {"not": "t1"}}
FILTERED = {"history.item": Ragged.of([HISTORY]), "filter": [json.dumps(FILTER)], "block": Ragged.of([BLOCK])}


def records_at(step, keys):
    columns = columns_of(keys, step)
    return {key: {name: values[n] for name, values in columns.items()} for n, key in enumerate(keys)}


class Shop:
    """A live server, and what it serves by step: of which step each item's row is, and the records of items."""

    def __init__(self, server, folder):
        self.server, self.folder, self.step = server, folder, 0
        self.rows, self.records = {0: dict.fromkeys([*ITEMS, LEAST], 0)}, {0: records_at(0, RECORDED)}
        self.best = cache(lambda step, history: best(self.rows[step], step, history, K))
        self.stocked = cache(lambda step: self.passing(step, {"stock": [1, None]}))

    def publish(self, items=(), removed=(), recorded=None, unrecorded=(), numbers=None):
        step, before = self.server.next_step(MODEL), self.step
        delta = ranked_delta(step, items, removed, before, recorded, unrecorded)
        if numbers:
            delta.tables[NUMBERS] = TableDelta(*numbers_of(numbers), np.empty(0, np.int64))
        write_delta(self.folder / "upload", delta)
        rows = {item: of for item, of in self.rows[before].items() if item not in removed}
        self.rows[step] = rows | dict.fromkeys(items, step)
        records = {key: record for key, record in self.records[before].items() if key not in unrecorded}
        self.records[step] = records | records_at(step, recorded or ())
        status, reply = self.server.upload(MODEL, (self.folder / "upload").read_bytes())
        assert status == 200, reply
        self.step = step

    def passing(self, step, condition):
        """Items that pass a filter and are not in the history."""
        return {key for key in ITEMS if passes(condition, self.records[step].get(key))} - set(HISTORY)

    def client(self, scheme="http"):
        return Client(self.server.address(scheme), timeout_s=60)


@pytest.fixture(scope="module", params=[ALONE, ("--workers", "2")], ids=["alone", "workers"])
def shop(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("top")
    write_ranked(folder / "repository", [*ITEMS, LEAST], recorded=RECORDED, numbers=PAIRS)
    write_package(folder / "repository", users=range(10))
    with LiveServer(folder / "repository", *request.param, "--delta-guard", "off", log=folder / "serve.log") as server:
        yield Shop(server, folder)


def step_of(prediction):
    return int(prediction.generation.partition(".")[2])


def asked_meanwhile(shop, publish, inputs, count):
    """The predictions of two clients that ask without a pause while deltas are published, until the newest answers."""
    found, published = [], threading.Event()

    def ask():
        with shop.client() as client:
            while not (published.is_set() and found and step_of(found[-1]) == shop.step):
                found.append(client.predict(MODEL, inputs, top_items=count))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        publish()
    finally:
        published.set()
        for thread in asking:
            thread.join(60)
    assert len({step_of(prediction) for prediction in found}) > 2
    return found


def check_sources(shop, pairs):
    for name, ask in DIALECTS.items():
        for column, source in enumerate(("popular", "new")):
            listed = sorted(pairs, key=lambda item, column=column: (-pairs[item][column], item))[:K]
            assert ask(shop.server, MODEL, {"source": [source]}, TOP).outputs["item_ids"][0].tolist() == listed, name
        like = ask(shop.server, MODEL, {"like": [7]}, TOP).outputs["item_ids"]
        user = ask(shop.server, MODEL, {"history.item": Ragged.of([[7]])}, TOP).outputs["item_ids"]
        assert like.tolist() == user.tolist(), name


def test_every_dialect_lists_sources_after_a_delta_and_a_rollback(shop):
    check_sources(shop, PAIRS)
    changed = {3: (50.0, PAIRS[3][1]), 7777: (1.0, 2.0)}
    before = shop.step
    shop.publish([7777], numbers=changed)
    check_sources(shop, PAIRS | changed)
    for scheme in ("http", "grpc"):
        with shop.client(scheme) as client:
            assert client.recommend(MODEL, {}, K, source="popular").item_ids[0] == 3
            assert client.recommend(MODEL, {}, K, source="new").item_ids[0] == 7777
            with pytest.raises(BadInput, match="source: expected 'model', 'like', 'popular' or 'new', got 'hot'"):
                client.recommend(MODEL, {}, K, source="hot")
            with pytest.raises(BadInput, match=r"history\.item"):
                client.recommend(MODEL, {}, K)
            assert client.recommend(MODEL, {}, K, like=99_999).unfilled == K
    status, reply = shop.server.post_json(f"/admin/models/{MODEL}/rollback", {"generation": f"1.{before}"})
    assert status == 200, reply
    shop.step = before
    check_sources(shop, PAIRS)


def check_best(shop):
    for name, ask in DIALECTS.items():
        users = [[3, 4], [8, 7]] if name == "DeepRec" else USERS
        reply = ask(shop.server, MODEL, {"history.item": Ragged.of(users)}, TOP)
        ids, scores = reply.outputs["item_ids"], reply.outputs["scores"]
        assert ids.shape == scores.shape == (len(users), K)
        if name not in ("tensorflow columns", "tensorflow rows"):
            assert (ids.dtype, scores.dtype) == (np.int64, np.float32), name
        for user, history in enumerate(users):
            best_ids, best_scores = shop.best(shop.step, tuple(history))
            np.testing.assert_allclose(scores[user], best_scores, atol=1e-5)
            assert set(ids[user].tolist()) == set(best_ids.tolist())


def test_every_dialect_gives_the_best_items(shop):
    check_best(shop)
    shop.publish([*range(1, 3000, 2), LEAST], removed=range(100, 110, 2))
    check_best(shop)
    for name, ask in DIALECTS.items():
        # Without events that have a row; an id beyond floats comes whole.
        reply = ask(shop.server, MODEL, {"history.item": Ragged.of([[10**6, 10**6 + 1]])}, TOP)
        assert int(reply.outputs["item_ids"][0, 0]) == LEAST, name


def test_named_outputs_and_long_histories_are_answered(shop):
    events = np.resize(np.arange(1, 900), 20_000).tolist()
    lists = [{"history.item": Ragged.of([some])} for some in (events, events[-8:])]
    for scheme in ("http", "grpc"):
        with shop.client(scheme) as client:
            whole, short = (client.predict(MODEL, inputs, top_items=K, outputs=["item_ids"]) for inputs in lists)
            assert list(whole.outputs) == ["item_ids"]
            assert np.array_equal(whole.outputs["item_ids"], short.outputs["item_ids"])
            both = client.predict(MODEL, lists[1], top_items=K)
            assert both.generation == short.generation
            assert np.array_equal(both.outputs["item_ids"], short.outputs["item_ids"])


def test_every_reply_is_of_the_generation_that_it_names(shop):
    def publish():
        for parity in (0, 1, 0, 1, 0):
            shop.publish(range(parity, 3000, 2))

    found = asked_meanwhile(shop, publish, {"history.item": Ragged.of([HISTORY])}, K)
    different = {(p.generation, p.outputs["scores"].tobytes()): p for p in found}
    assert len(different) == len({step_of(p) for p in found})
    for prediction in different.values():
        ids, scores = shop.best(step_of(prediction), tuple(HISTORY))
        np.testing.assert_allclose(prediction.outputs["scores"][0], scores, atol=1e-5)
        assert set(prediction.outputs["item_ids"][0].tolist()) == set(ids.tolist())


def test_every_dialect_filters_and_says_how_many_are_missing(shop):
    good = shop.passing(shop.step, FILTER) - set(BLOCK)
    for name, ask in DIALECTS.items():
        reply = ask(shop.server, MODEL, FILTERED, TOP_ALL)
        assert set(reply.outputs["item_ids"][0].tolist()) == good, name
        assert int(reply.headers["x-unfilled"]) == ALL - len(good), name
    for scheme in ("http", "grpc"):
        with shop.client(scheme) as client:
            found = client.recommend(MODEL, {"history.item": HISTORY}, ALL, filters=FILTER, block=BLOCK)
            assert set(found.item_ids.tolist()) == good
            assert found.unfilled == ALL - len(good)


def test_nothing_that_a_delta_has_sold_out_is_in_a_reply_of_its_generation(shop):
    def publish():
        for n in range(6):
            before = shop.records[shop.step]
            sold_out = [key for key in before if key % 7 == n and key % 3 != n % 3]
            shop.publish(recorded=range(n, 3000, 3), unrecorded=sold_out)

    inputs = {"history.item": Ragged.of([HISTORY]), "filter": [json.dumps({"stock": [1, None]})]}
    for prediction in asked_meanwhile(shop, publish, inputs, ALL):
        ids = prediction.outputs["item_ids"][0].tolist()
        assert set(ids) == shop.stocked(step_of(prediction)), step_of(prediction)
        assert prediction.unfilled == ALL - len(ids)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"filter": [" " * 10_000_000]}, "filter: expected at most 65536 bytes, got 10000000"),
        ({"filter": ['{"stock": ' + "9" * 60_000 + "}"]}, "filter: expected a JSON object"),
        ({"allow": Ragged(np.zeros(4_000_001, np.int64), np.array([0, 4_000_001]))}, "max_ids: expected at most"),
        ({"allow": Ragged.of([[1], [2], [3]])}, "allow: expected a list of ids for each of 1 users"),
    ],
    ids=["very long", "long number", "too many allowed", "lists of others"],
)
def test_hostile_filters_are_refused_by_name(shop, inputs, message):
    user = {"history.item": Ragged.of([HISTORY])}
    for scheme in ("http", "grpc"):
        with shop.client(scheme) as client:
            with pytest.raises((BadInput, TooLarge), match=message):
                client.predict(MODEL, user | inputs, top_items=ALL)
            assert client.predict(MODEL, user, top_items=3).unfilled == 0


def test_a_million_allowed_ids_are_read_within_the_limits(shop):
    allowed = Ragged(np.arange(1_000_000), np.array([0, 1_000_000]))
    with shop.client("grpc") as client:
        found = client.predict(MODEL, {"history.item": Ragged.of([HISTORY]), "allow": allowed}, top_items=ALL)
    gone = {item for item in ITEMS if item not in shop.rows[shop.step]}
    assert found.unfilled == len(gone | set(HISTORY))


def infer(shop, request, headers):
    address = f"127.0.0.1:{shop.server.grpc_port}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(INFER)(request.SerializeToString(), timeout=60, metadata=tuple(headers.items()))
    return refused.value.code(), refused.value.details()


@pytest.mark.parametrize("text", ["0", "1000000000000", "", "5.0", "+5"])
def test_hostile_number_is_refused_by_name(shop, text):
    headers, body = {"x-top-items": text}, json.dumps({"inputs": {"history.item": [[1]]}})
    status, _, data = shop.server.request("POST", f"/v1/models/{MODEL}:predict", body, headers)
    expected = "x-top-items: expected a whole number from 1 to 10000, got "
    assert (status, json.loads(data)["error"].startswith(expected)) == (400, True), data
    code, details = infer(shop, kserve_request(MODEL, FILTERED), headers)
    assert (code, details.startswith(expected)) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


@pytest.mark.parametrize("splits", [[-1, 3], [0, 3, 1, 3], [0, 2**40], [1, 3], []], ids=str)
def test_hostile_splits_are_refused_over_grpc(shop, splits):
    request = kserve_request(MODEL, FILTERED)
    at = [tensor.name for tensor in request.inputs].index("block.row_splits")
    request.inputs[at].shape[:] = [len(splits)]
    request.raw_input_contents[at] = np.array(splits, np.int64).tobytes()
    code, details = infer(shop, request, TOP_ALL)
    assert (code, "block" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details


def test_requests_that_cannot_be_ranked_are_refused(shop):
    for scheme in ("http", "grpc"):
        with shop.client(scheme) as client:
            with pytest.raises(BadInput, match="model 'small' version 1 cannot rank all items of a table"):
                client.predict("small", {"user": np.array([1])}, top_items=K)
            with pytest.raises(BadInput, match="outputs"):
                client.predict(MODEL, {"history.item": Ragged.of([[1]])}, top_items=K, outputs=["score"])
            # As before without the number: candidates are required.
            with pytest.raises(BadInput, match="item"):
                client.predict(MODEL, {"history.item": Ragged.of([[1]])})
    for method in ("classify", "regress"):
        body = json.dumps({"examples": [{"history.item": [1, 2]}]})
        status, _, data = shop.server.request("POST", f"/v1/models/{MODEL}:{method}", body, TOP)
        assert (status, b"x-top-items: expected a predict request" in data) == (400, True)
