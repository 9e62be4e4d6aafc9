"""`freshet explain`: what it asks, and what it prints of the answer."""

import json

import pytest
from typer.testing import CliRunner

from freshet_serving.serving.commands import admin_client
from freshet_serving.serving.commands.cli import app

SIDE = {
    "generation": "1.16",
    "served": True,
    "executable": {"backend": "xla", "target": "cpu", "precision": "float32", "bucket": 4, "computes": "xla float32"},
    "computed_by": "supervisor, beside 2 workers",
    "timings_ms": {"bind": 0.1, "look_up": 0.2, "pool": 0.01, "open": 31.0, "execute": 0.2},
    "outputs": {"score": [0.25]},
    "inputs": {
        "user": {
            "kind": "id",
            "combiner": "sum",
            "length": 1,
            "ids": [{"id": "7", "key": "7", "found": "row", "from": "delta", "step": 12, "norm": 0.5}],
        },
        "tags": {
            "kind": "strings",
            "combiner": "mean",
            "length": 20,
            "ids": [
                {"id": f"t\x1b{n}", "key": "1", "found": "default", "why": "no row", "norm": 0.0} for n in range(10)
            ],
        },
        "empty": {"kind": "ids", "combiner": "sum", "length": 0, "ids": []},
        "age": {"kind": "float", "value": None, "fed": 0.0},
        "block": {"kind": "floats", "width": 6, "fed": [0.0] * 6},
    },
}
AGAINST = {
    **SIDE,
    "generation": "1.12",
    "served": False,
    "inputs": {
        **SIDE["inputs"],
        "user": {
            **SIDE["inputs"]["user"],
            "ids": [{"id": "7", "key": "7", "found": "default", "why": "removed", "step": 3, "norm": 0.0}],
        },
    },
}
MOVED = {"what": "feature user", "feature": "user", "score_change": 0.125, "outputs": {"score": [0.125]}}
ALONE = {"model": "ctr", "row": 0, "rows": 3, "sides": [SIDE]}
COMPARED = {
    **ALONE,
    "sides": [SIDE, AGAINST],
    "change": {"score": [0.125]},
    "moved": [MOVED],
    "moved_left_out": 2,
    "recorded": {
        "request_id": "r\x1b1",
        "generation": "1.12",
        "time": "2026-01-01T00:00:00+00:00",
        "outputs": {"score": [0.125]},
    },
}


@pytest.fixture
def server(monkeypatch):
    """Answers every call; calls: what was asked."""

    class Server:
        answer, calls = ALONE, []

    def send(self, method, path, document):
        Server.calls.append((method, path, document))
        return Server.answer

    Server.calls = []
    monkeypatch.setattr(admin_client.AdminClient, "send_json", send)
    monkeypatch.setenv("COLUMNS", "200")
    return Server


def explain(*arguments, stdin=None):
    return CliRunner().invoke(app, ["explain", "ctr", *arguments], input=stdin)


def test_request_file_is_sent_with_the_chosen_options(server, tmp_path):
    (tmp_path / "request.json").write_text('{"inputs": {"user": [9007199254740993]}, "other": 1}')
    result = explain("--request", str(tmp_path / "request.json"), "--row", "2", "--against", "1.12", "--version", "1")
    assert result.exit_code == 0, result.output
    (call,) = server.calls
    assert call[:2] == ("POST", "/admin/models/ctr/explain")
    wanted = {"inputs": {"user": [9007199254740993]}, "row": 2, "version": 1, "against": "1.12"}
    assert call[2] == wanted


def test_one_side_is_printed_with_its_row_origins(server):
    out = explain("--request-id", "r1").stdout
    assert server.calls[0][2] == {"request_id": "r1", "row": 0}
    assert "ctr, row 0 of 3" in out
    assert "1.16: score 0.25   xla float32, bucket 4, supervisor, beside 2 workers" in out
    assert "delta 12, norm 0.5" in out
    assert "default (no row), norm 0" in out
    assert "and 2 more" in out
    assert "20 values, the others exceed its max_length" in out
    assert "nan" in out
    assert "6 numbers" in out
    assert "no ids" in out
    assert "\x1b" not in out


def event(place, change):
    ids = {"h.item": [{"id": f"i{place}\x1b"}], "h.action": [{"id": "2"}]}
    floats = {"h.watched": place / 4, "h.paid": None}
    return {"place": place, "ids": ids, "score_change": change, "outputs": {"score": [change]}, "floats": floats}


def test_events_of_the_largest_changes_are_printed_in_order(server):
    newest = [event(place, (-1) ** place * place / 100) for place in range(5, 30)]
    newest[3] = event(8, 0.5)
    history = {"h": {"events": 30, "left_out": 5, "max_length": 50, "newest": newest}}
    server.answer = {**ALONE, "sides": [{**SIDE, "histories": history}]}
    out = explain("--request-id", "r1").stdout
    assert "h, 30 events" in out
    places = [int(line.split(":")[0]) for line in out[out.index("h, 30 events") :].splitlines()[1:] if ", nan " in line]
    assert places == [8, *range(15, 30)]
    assert ", 2, 4, nan" in out
    assert "+0.5" in out
    assert "-0.29" in out
    assert "and 9 events of smaller changes" in out
    assert "and the 5 oldest, which were not computed" in out
    assert "\x1b" not in out


def test_events_of_two_sides_are_printed_side_by_side(server):
    sides = [
        {**side, "histories": {"h": {"events": 1, "left_out": 0, "max_length": 9, "newest": [event(0, change)]}}}
        for side, change in ((SIDE, 0.25), (AGAINST, None))
    ]
    server.answer = {**COMPARED, "sides": sides}
    out = explain("--request-id", "r1").stdout
    assert "score by the event in 1.16" in out
    (line,) = (line for line in out.splitlines() if line.startswith("0: i0"))
    assert line.split()[-2:] == ["+0.25", "nan"]


def test_two_sides_are_printed_with_what_moved_the_score(server):
    server.answer = COMPARED
    out = explain("--request", "-", stdin='{"instances": [1]}').stdout
    assert "1.12 (not served now): score 0.25" in out
    assert "default (removed by step 3)" in out
    assert "moved between 1.12 and 1.16" in out
    assert "+0.125" in out
    assert "and 2 smaller changes" in out
    assert "answered at 2026-01-01T00:00:00+00:00 by 1.12: score 0.125" in out
    assert "\x1b" not in out


def test_json_reply_is_printed_unchanged(server):
    server.answer = COMPARED
    assert json.loads(explain("--request-id", "r1", "--json").stdout) == COMPARED


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ((), None, "expected either --request or --request-id"),
        (("--request", "x", "--request-id", "y"), None, "expected either --request or --request-id"),
        (("--request", "nowhere.json"), None, "No such file"),
        (("--request", "-"), "[", "--request: -: expected JSON, got: Expecting value: line 1"),
        (("--request", "-"), "[]", "a JSON object"),
    ],
)
def test_file_that_is_not_a_request_is_refused(server, arguments, stdin, message):
    result = explain(*arguments, stdin=stdin)
    assert message in str(result.exception)
    assert server.calls == []


ITEM = {
    "id": "106\x1b", "place": 2, "ranked": 29, "why_not": [], "score": 0.5,
    "parts": {"learned": 0.25, "popularity": 0.25},
    "nearest": [{"input": "history.item", "place": 1, "id": "103", "product": 0.5, "cosine": 0.75}],
    "row": {"found": "row", "from": "delta", "step": 3},
    "record": {"found": "default", "why": "no row"},
}  # fmt: skip


def test_item_is_asked_for_and_its_place_is_printed(server, tmp_path):
    (tmp_path / "request.json").write_text('{"inputs": {"history.item": [[100, 103]]}}')
    gone = {**AGAINST, "item": {**ITEM, "place": None, "why_not": ["filter.price: expected 3, got 4"], "nearest": []}}
    server.answer = {**ALONE, "sides": [{**SIDE, "item": ITEM}, gone]}
    options = ["explain", "shop", "--request", str(tmp_path / "request.json"), "--item", "106"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert server.calls[0][2]["item"] == "106"
    line = "in 1.16: place 2 of 29, score 0.5 of learned 0.25, popularity 0.25; row delta 3, record default (no row)"
    assert line in result.output
    assert "history.item 1: 103" in result.output
    assert "in 1.12: not placed" in result.output
    assert "   filter.price: expected 3, got 4" in result.output
    assert "\x1b" not in result.output


def test_long_outputs_are_cut_short(server, tmp_path):
    (tmp_path / "request.json").write_text('{"inputs": {}}')
    server.answer = {**ALONE, "sides": [{**SIDE, "outputs": {"user_vector": [0.5] * 50}}]}
    result = CliRunner().invoke(app, ["explain", "shop", "--request", str(tmp_path / "request.json")])
    assert f"user_vector {' '.join(['0.5'] * 8)} ...   xla" in result.output
