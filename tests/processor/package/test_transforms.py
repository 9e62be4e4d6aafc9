"""A manifest's transforms are checked before anything is computed: untrusted numbers have bounds."""

import dataclasses

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output, TableEntry
from freshet_serving.processor.package.transform_rules import OPS, shape_of
from freshet_serving.processor.package.transforms import MAX_CROSSED, ColumnShape, Transform

WORD, ID, FLOAT = ColumnShape("string"), ColumnShape("int64"), ColumnShape("float32")
WORDS, IDS = ColumnShape("string", 0, True), ColumnShape("int64", 0, True)
PAIR = ColumnShape("int64", 2)


def manifest(*transforms, source="t"):
    return Manifest(
        model="m",
        version=1,
        arch="imported",
        created_at=0.0,
        inputs=[Input("word", "string"), Input("id", "int64")],
        features=[Feature("f", "id", source, table="rows", width=2)],
        tables=[TableEntry("rows", 2, 0)],
        outputs=[Output("y")],
        width=2,
        dense={},
        files={},
        transforms=list(transforms),
    )


def test_transforms_round_trip_and_older_manifests_have_none():
    kept = manifest(Transform("t", "farm", ["word"], [10]))
    assert Manifest.from_json(kept.to_json()) == kept
    assert [(s.name, s.dtype) for s in kept.sources] == [("word", "string"), ("id", "int64"), ("t", "int64")]
    older = manifest(source="id").to_json()
    assert b"transforms" not in older
    assert Manifest.from_json(older).transforms == []


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (
            [Transform("t", "farm", ["nobody"], [10])],
            r"transforms\[t\].inputs: 'nobody' is not an input or an earlier transform",
        ),
        ([Transform("t", "farm", ["t"], [10])], r"transforms\[t\].inputs: 't' is not an input or an earlier transform"),
        ([Transform("t", "rot13", ["word"])], r"transforms\[t\].op: expected one of farm, .*, got 'rot13'"),
        ([Transform("t", "farm", [], [10])], r"transforms\[t\].inputs: expected 1 to 256, got 0"),
        (
            [Transform("t", "farm", ["word"], [2**70])],
            r"transforms\[t\].integers: expected up to 65536 numbers of 64 bits",
        ),
        ([Transform("t", "join", ["word"], texts=["x" * 5000, ""])], r"transforms\[t\]: expected at most 4096 letters"),
        ([Transform("id", "farm", ["word"], [10])], "manifest.inputs: 'id' occurs more than once"),
        ([Transform("a b", "farm", ["word"], [10])], "manifest.inputs: expected a name of letters"),
    ],
)
def test_invalid_transforms_are_refused_by_name(transforms, message):
    with pytest.raises(BadInput, match=message):
        manifest(*transforms).to_json()


REFUSED = [
    ("farm", [ID], [10], [], []),
    ("farm", [WORD], [0], [], []),
    ("farm", [WORD], [2**63], [], []),
    ("farm", [WORD], [10, 1], [], []),
    ("sip", [WORD], [10, 1], [], []),
    ("sip", [WORD], [10, -1, 1], [], []),
    ("text", [ID], [], [], ["%s"]),
    ("text", [ID], [], [], ["%99999d"]),
    ("text", [ID], [], [], ["%.2f"]),
    ("text", [FLOAT], [], [], ["%d%d"]),
    ("join", [WORD, ID], [], [], ["", "", ""]),
    ("join", [WORD], [], [], [""]),
    ("join", [WORDS, WORD], [], [], ["", "", ""]),
    ("join", [ColumnShape("string", 2), ColumnShape("string", 3)], [], [], ["", "", ""]),
    ("bucketize", [ID], [], [1.0], []),
    ("bucketize", [FLOAT], [], [2.0, 1.0], []),
    ("floor_modulo", [ID], [0], [], []),
    ("floor_divide", [ID], [-1], [], []),
    ("floor_modulo", [ID, ID], [], [], []),
    ("add", [ID, IDS], [], [], []),
    ("add", [PAIR], [1, 2, 3], [], []),
    ("add", [ID], [2**63], [], []),
    ("pick", [PAIR], [2], [], []),
    ("pick", [PAIR], [-1], [], []),
    ("pick", [IDS], [0], [], []),
    ("side_by_side", [ID, WORD], [], [], []),
    ("drop", [FLOAT], [1], [], []),
    ("drop", [WORD], [1], [], []),
    ("fill", [WORDS], [1], [], []),
    ("fill", [ID], [1], [], []),
    ("newest", [ID], [0, 1], [], []),
    ("newest", [IDS], [0], [], []),
    ("newest", [IDS], [-1, 1], [], []),
    ("newest", [IDS], [0, 0], [], []),
    ("newest", [IDS], [0, (1 << 16) + 1], [], []),
    ("aged", [IDS], [0, 1], [], []),
    ("aged", [IDS, WORDS], [0, 1], [], []),
    ("aged", [IDS, ID], [0, 1], [], []),
    ("aged", [IDS, IDS], [1, 1], [], []),
    ("aged", [IDS, IDS], [-1, 1], [], []),
    ("aged", [IDS, IDS], [0, 2**63], [], []),
    ("where", [IDS], [1], [], []),
    ("where", [IDS, ID], [1], [], []),
    ("where", [IDS, WORDS], [1], [], []),
    ("where", [IDS, IDS], [2**63], [], []),
    ("where", [IDS, IDS], [1], [], ["a"]),
    ("empty", [ID], [], [], []),
    ("one_hot", [ID], [0], [], []),
    ("one_hot", [PAIR], [40_000], [], []),
    ("tally", [PAIR], [70_000, 1], [], []),
    ("tally", [PAIR], [10, 2], [], []),
    ("mask", [WORD, ID], [1, 2], [], [""]),
    ("mask", [PAIR, ID], [1, 2], [], []),
    ("whole", [FLOAT], [16], [], []),
    ("within", [ID], [0, 1], [], []),
    ("cross", [FLOAT, ID], [10, 1], [], []),
    ("cross", [ID, ID], [0, 1], [], []),
    ("cross", [ID, ID], [10], [], []),
    ("equal", [IDS], [], [], []),
    ("equal", [ID, IDS], [], [], []),
    ("equal", [IDS, IDS], [], [], []),
    ("equal", [IDS, PAIR], [], [], []),
    ("equal", [IDS, WORD], [], [], []),
    ("cross", [ColumnShape("int64", 300), ColumnShape("int64", 300)], [10, 1], [], []),
]


@pytest.mark.parametrize(("op", "shapes", "integers", "floats", "texts"), REFUSED)
def test_inputs_that_an_op_cannot_take_are_refused(op, shapes, integers, floats, texts):
    inputs = [f"i{n}" for n in range(len(shapes))]
    with pytest.raises(BadInput, match=rf"manifest.transforms\[t\]: {op} does not accept"):
        shape_of(Transform("t", op, inputs, integers, floats, texts), shapes)


def test_shapes_follow_from_the_input_shapes():
    def shape(op, *shapes, integers=(), texts=()):
        return shape_of(Transform("t", op, ["i"] * len(shapes), list(integers), [], list(texts)), shapes)

    assert shape("farm", WORDS, integers=[5]) == IDS
    assert shape("newest", WORDS, integers=[0, 3]) == WORDS
    assert shape("where", IDS, WORDS, texts=["buy"]) == IDS
    assert shape("aged", WORDS, IDS, integers=[0, 5]) == WORDS
    assert shape("where", IDS, WORDS, IDS, integers=[2], texts=["buy"]) == IDS
    assert shape("cross", WORD, ID, integers=[5, 0]) == ID
    assert shape("equal", WORDS, WORD) == ID
    assert shape("cross", PAIR, PAIR, integers=[5, 0]) == ColumnShape("int64", 4)
    assert shape("cross", PAIR, IDS, integers=[5, 0]) == IDS
    assert shape("side_by_side", ID, PAIR) == ColumnShape("int64", 3)
    assert shape("pick", PAIR, integers=[1]) == ID
    assert shape("join", WORD, ColumnShape("string", 2), texts=["", "", ""]) == ColumnShape("string", 2)
    assert shape("tally", PAIR, integers=[9, 1]) == ColumnShape("float32", 9)


def test_every_op_is_computed_and_described():
    from freshet_serving.processor.features import evaluation

    assert evaluation.OPS.keys() == OPS.keys()
    described = Transform.__doc__.replace(",", " ").split()
    assert [op for op in OPS if op not in described] == []
    assert {f.name for f in dataclasses.fields(Transform)} == {"name", "op", "inputs", "integers", "floats", "texts"}
    assert MAX_CROSSED <= 1 << 16
