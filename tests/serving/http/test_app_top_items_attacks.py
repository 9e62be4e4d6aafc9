"""Attacks by requests for the best items: each is refused by name, or costs what its ids and its text say.

What a request costs is counted in rows read, items scanned and calls, not in seconds.
"""

import json

import numpy as np
import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.extensions.top_items import best_items
from freshet_serving.processor.extensions.top_items.item_filters import READ_ROWS, FilteredEntity
from freshet_serving.processor.features.limits import RequestLimits
from tests.serving.fakes import send
from tests.serving.http.data_app import serve
from tests.support.ranked import MODEL, write_ranked

PREDICT, INFER = f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer"
ITEMS = 40
MAX_IDS = 20_000


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    write_ranked(folder, range(ITEMS), recorded=range(0, ITEMS, 2))
    with Processor.initialize(
        ProcessorConfig(str(folder), sessions=1, limits=RequestLimits(max_ids=MAX_IDS))
    ) as processor:
        yield serve(processor.predictor)[0]


@pytest.fixture
def cost(monkeypatch):
    """Counts what requests scan and read."""
    counted = {"scanned": 0, "reads": 0, "rows read": 0}
    scan, read = best_items.rank_rows, FilteredEntity.read

    def count_scan(table, epoch, arrays, vectors, excluded, k, proceed, bits=None):
        def counting(rows):
            counted["scanned"] = max(counted["scanned"], rows * len(vectors))
            return proceed(rows)

        return scan(table, epoch, arrays, vectors, excluded, k, counting, bits)

    def count_read(self, table, epoch, keys):
        counted["reads"] += 1
        counted["rows read"] += len(keys)
        return read(self, table, epoch, keys)

    monkeypatch.setattr(best_items, "rank_rows", count_scan)
    monkeypatch.setattr(FilteredEntity, "read", count_read)
    return counted


def columns(**inputs):
    return PREDICT, json.dumps({"inputs": {"history.item": [[1, 2]], **inputs}}).encode(), {}


def tensor(name, datatype, data, shape=None):
    return {"name": name, "shape": shape or [len(data)], "datatype": datatype, "data": data}


def kserve(*tensors):
    own = [tensor("history.item", "INT64", [1, 2]), tensor("history.row_splits", "INT64", [0, 2])]
    return INFER, json.dumps({"inputs": [*own, *tensors]}).encode(), {}


def binary(name, datatype, shape, data):
    """A tensor in bytes, after the JSON."""
    path, body, _ = kserve()
    document = json.loads(body)
    about = {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [*document["inputs"], about]}).encode()
    return path, head + data, {"inference-header-content-length": str(len(head))}


def in_bytes(text):
    return len(text).to_bytes(4, "little") + text


def text(wanted):
    return columns(filter=[wanted if isinstance(wanted, str) else json.dumps(wanted)])


NESTED = '{"stock": ' + '{"not": ' * 9000 + "1" + "}" * 9001
ATTACKS = {
    "brackets": (text("[" * 60_000), "filter: expected a JSON object"),
    "nots": (text(NESTED), "filter: expected"),
    "ten megabytes": (text('{"stock": "' + "x" * 10_000_000 + '"}'), "filter: expected at most 65536 bytes, got 1000"),
    "ten megabytes in KServe's JSON": (
        kserve(tensor("filter", "BYTES", [" " * 10_000_000])), "filter: expected at most 65536 bytes, got 10000000",
    ),
    "a million values": (text({"stock": {"in": [1] * 1_000_000}}), "filter: expected at most 65536 bytes"),
    "all values that fit": (text({"stock": {"in": list(range(10_001))}}), "filter: expected at most 10000 values"),
    "NaN": (text('{"price": NaN}'), "filter: expected finite numbers, got NaN"),
    "1e400": (text('{"price": [1e400, null]}'), "filter.price: expected a number or null, got Infinity"),
    "a number of 60,000 digits": (text('{"stock": ' + "9" * 60_000 + "}"), "filter: expected a JSON object"),
    "a lone surrogate": (text('{"category": "\\ud800"}'), "filter.category: expected Unicode texts"),
    "a lone surrogate as a column": (text('{"\\ud800": 1}'), "filter: '\\ud800' is no column"),
    "NUL as a column": (text('{"price\\u0000": 1}'), "filter: 'price\\x00' is no column"),
    "keys again": (text('{"stock": 1, "stock": 1}'), "filter: expected each key once, got 'stock' again"),
    "thousands of columns": (text({f"c{n}": 1 for n in range(5000)}), "filter: expected at most 64 columns, got 5000"),
    "a column that is not there": (text({"colour": 1}), "filter: 'colour' is no column to filter on"),
    "a list for a number": (text({"price": [[1], 2]}), "filter.price: expected a number or null"),
    "a text for a list of numbers": (text({"sizes": "x"}), "filter.sizes: expected a number"),
    "bytes that are no UTF-8": (
        binary("filter", "BYTES", [1], in_bytes(b"\xff\xfe{")), "filter: expected a JSON object",
    ),
    "a text longer than its bytes": (binary("filter", "BYTES", [1], b"\xff\xff\xff\x7f{}"), "filter"),
    "a filter of numbers": (kserve(tensor("filter", "INT64", [1])), "filter"),
    "a text for a number": (text({"price": "x"}), "filter.price: expected a number, got 'x'"),
    "a filter that is no text": (columns(filter=[3]), "filter"),
    "two filters": (columns(filter=["{}", '{"stock": 1}']), "filter: expected one text for all users"),
    "more ids than there may be": (columns(allow=[list(range(1_000_000))]), "max_ids: expected at most"),
    "more ids by bytes": (
        binary("allow", "INT64", [30_000], np.arange(30_000).tobytes()), "",
    ),
    "ids beyond int64": (columns(allow=[[2**63]]), "allow"),
    "ids below int64": (columns(block=[[-(2**63) - 1]]), "block"),
    "ids that are no whole numbers": (columns(seen=[[1.5]]), "seen"),
    "ids that are texts": (columns(block=[["a"]]), "block"),
    "a candidate that is a text": (columns(item=["a"]), "item"),
    "a flat list of ids": (columns(allow=[1, 2]), "allow: expected a list of lists"),
    "ids that are true": (columns(seen=[[True]]), "seen"),
    "negative splits": (
        kserve(tensor("allow", "INT64", [1, 2]), tensor("allow.row_splits", "INT64", [-1, 2])), "allow",
    ),
    "falling splits": (
        kserve(tensor("allow", "INT64", [1, 2]), tensor("allow.row_splits", "INT64", [0, 2, 1, 2])), "allow",
    ),
    "splits beyond the ids": (
        kserve(tensor("block", "INT64", [1, 2]), tensor("block.row_splits", "INT64", [0, 2**40])), "block",
    ),
    "no splits": (kserve(tensor("block", "INT64", [1, 2])), "block"),
    "lists for other users": (columns(allow=[[1], [2], [3]]), "allow: expected a list of ids for each of 1 users"),
    "ten megabytes of a source": (columns(source=["x" * 10_000_000]), "source: expected 'model', 'like'"),
    "a source that is no UTF-8": (binary("source", "BYTES", [1], in_bytes(b"\xff\xfe")), "source: expected 'model'"),
    "a source that is a number": (columns(source=[1]), "source"),
    "a source 'like' without an item": (columns(source=["like"]), "like: expected the id of an item"),
    "a text to be like": (columns(like=["a"]), "like"),
    "a source of numbers": (kserve(tensor("source", "INT64", [1])), "source"),
    "sources that differ": (columns(source=["like", "model"]), "source: expected one text for all users"),
    "a source that is not there": (columns(source=["popular"]), "version 1 has no 'popular', only 'model', 'like'"),
    "more items to be like than there may be users": (columns(like=list(range(1_000_000))), "max_"),
    "an item beyond int64 to be like": (columns(like=[2**63]), "like"),
    "a lone surrogate to be like": (columns(like=["\ud800"]), ""),
    "no item to be like": (columns(like=[]), ""),
    "a like of another source": (columns(like=[1], source=["model"]), "like: expected it with source 'like' alone"),
    "a shape beyond its bytes": (binary("seen", "INT64", [2**40], b"\0" * 16), "seen"),
    "a negative shape": (binary("seen", "INT64", [-1], b"\0" * 16), "seen"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused_by_name_and_scans_nothing(app, cost, name):
    (path, body, headers), message = ATTACKS[name]
    reply = send(app, "POST", path, body, {"x-top-items": "3", **headers})
    assert 400 <= reply.status < 500, reply.body[:300]
    error = json.loads(reply.body)["error"]
    assert message in error
    assert len(error) < 1000
    assert cost == {"scanned": 0, "reads": 0, "rows read": 0}


@pytest.mark.parametrize(
    "number",
    [
        "0", "-1", "10001", "ten", "", "5.0", " 5", "1000000000", "00000000000000000001", "010000", "1e3", "0x10", "+5",
        "٣", "５", "²", "1,1", "\0",
    ],
)  # fmt: skip
def test_number_of_items_is_refused_by_name(app, cost, number):
    path, body, _ = columns()
    reply = send(app, "POST", path, body, {"x-top-items": number})
    assert reply.status == 400
    assert json.loads(reply.body)["error"].startswith("x-top-items: expected a whole number from 1 to 10000, got ")
    assert cost["scanned"] == 0


def test_users_times_items_are_within_the_limit(app, cost):
    many = {"history.item": [[1]] * (MAX_IDS // ITEMS + 1)}
    reply = send(app, "POST", PREDICT, json.dumps({"inputs": many}).encode(), {"x-top-items": "1"})
    assert reply.status == 413
    assert b"max_ids: expected at most" in reply.body
    few = {"history.item": [[1]] * 3, "allow": [[2]]}
    reply = send(app, "POST", PREDICT, json.dumps({"inputs": few}).encode(), {"x-top-items": "10000"})
    assert reply.status == 413
    assert b"items per reply" in reply.body
    assert cost["scanned"] == 0


def test_filter_of_many_users_reads_a_record_once_for_each_id(app, cost):
    users = 400
    inputs = {
        "history.item": [[1]] * users,
        "allow": [[2, 4]],
        "filter": ['{"stock": {"not": 99}, "price": {"not": 99}}'],
    }
    reply = send(app, "POST", PREDICT, json.dumps({"inputs": inputs}).encode(), {"x-top-items": "2"})
    assert reply.status == 200, reply.body[:300]
    assert [set(row) for row in json.loads(reply.body)["outputs"]["item_ids"]] == [{2, 4}] * users
    assert cost["rows read"] <= users * 2
    assert cost["reads"] <= -(-users * 2 // READ_ROWS)


def test_costly_filters_within_the_limits_read_each_block_once(app, cost):
    wanted = {"stock": {"not": {"not": {"in": list(range(9000))}}}, "tags": {"not": [f"t{n}" for n in range(900)]}}
    path, body, _ = columns(filter=[json.dumps(wanted)])
    reply = send(app, "POST", path, body, {"x-top-items": "40"})
    assert reply.status == 200, reply.body[:300]
    assert cost["scanned"] <= ITEMS
    assert cost["rows read"] <= ITEMS
