import numpy as np

from freshet_serving.processor.columns import ColumnLayout
from freshet_serving.serving.codecs import templates
from freshet_serving.serving.codecs.templates import Placeholder, Templates, cut, fields, filler
from tests.serving.fakes import PACKED, SINGLE

FLOATS = np.dtype("<f4")


def learn(known, data, start, content, name="x", rows=1, manifest=SINGLE, params="asked"):
    place = ColumnLayout(name, FLOATS, rows, 2, 0)
    known.learn(data, params, manifest, {name: place}, {name: Placeholder(start, content)})


def test_message_with_equal_length_and_literals_matches_its_template():
    known = Templates()
    learn(known, b"head12345678tail", 4, b"12345678")
    found = known.find(b"headABCDEFGHtail")
    assert (found.params, found.manifest, found.places.columns[0].offset) == ("asked", SINGLE, 4)
    assert known.find(b"heaDABCDEFGHtail") is None
    assert known.find(b"headABCDEFGHtaiL") is None
    assert known.find(b"headABCDEFGHtail.") is None


def test_misplaced_or_overlapping_values_make_no_template():
    known = Templates()
    learn(known, b"head12345678tail", 5, b"12345678")
    learn(known, b"head12345678tail", 4, b"1234567")
    learn(known, b"head12345678tail", 4, b"12345678", rows=2)
    place = ColumnLayout("x", FLOATS, 1, 2, 0)
    known.learn(b"12345678", "a", PACKED, {"x": place, "y": place}, {"x": Placeholder(0, b"12345678")})
    overlapping = {"x": Placeholder(0, b"12345678"), "y": Placeholder(4, b"56789012")}
    known.learn(b"123456789012", "a", PACKED, {"x": place, "y": place}, overlapping)
    assert known.find(b"head12345678tail") is known.find(b"12345678") is known.find(b"123456789012") is None


def test_template_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(templates, "MAX_KEPT", 4)
    monkeypatch.setattr(templates, "MAX_ALIKE", 2)
    known = Templates()
    for n in range(3):
        learn(known, b"%d12345678" % n, 1, b"12345678")
    assert known.find(b"012345678") is None
    assert known.find(b"212345678") is not None
    for n in range(2, 9):
        learn(known, b"x" * n + b"12345678", n, b"12345678")
    # The fourth beside the first was one too many, and all began anew.
    assert [n for n in range(2, 9) if known.find(b"x" * n + b"12345678") is not None] == [5, 6, 7, 8]
    long = b"x" * (templates.MAX_LITERAL_NBYTES + 1)
    learn(known, long + b"12345678", len(long), b"12345678")
    assert known.find(long + b"12345678") is None


def test_fields_yields_the_length_delimited_fields():
    data = b"\x08\x96\x01" + b"\x12\x02ab" + b"\x1d\0\0\0\0" + b"\x21" + bytes(8) + b"\x12\x00" + b"\xa2\x06\x01c"
    assert [(n, data[a:b]) for n, a, b in fields(data, 0, len(data))] == [(2, b"ab"), (2, b""), (100, b"c")]


def test_filler_is_removed():
    assert len(filler(12)) == 12
    assert cut(b"ab" + filler(8) + b"cd", filler(8)) == (b"ab", b"cd")
