"""model.json: what goes out comes back, and each rule refuses by name what breaks it."""

import copy
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import RANKED_OUTPUTS, ranks_items
from freshet_serving.processor.package import manifest as manifest_module
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, File, Input, Output, TableEntry
from tests.support import ranked
from tests.support.packages import manifest

FILES = {entry.file: File(3, "00000000") for entry in manifest().executables}
GOOD = dataclasses.replace(manifest(3, 20, 3), files=FILES, event_time=[1.0, 2.5], notes={"by": ["hand", None]})


def raw():
    return json.loads(GOOD.to_json())


def parse(value):
    return Manifest.from_json(json.dumps(value).encode())


def test_manifest_round_trips_through_its_file():
    assert Manifest.from_json(GOOD.to_json()) == GOOD


def test_optional_fields_may_be_omitted():
    small = raw()
    for key in ("event_time", "notes", "executables"):
        del small[key]
    for feature in small["features"]:
        for key in ("log1p", "combiner", "max_length", "side"):
            del feature[key]
    parsed = parse(small)
    assert (parsed.event_time, parsed.notes, parsed.graphs) == ([], {}, {})
    assert parsed.features[1].combiner == "sum"


def test_tables_and_inputs_are_found_by_name():
    assert GOOD.table("tag").hash_seed == 7
    assert GOOD.input("floats").columns == 4


def test_integers_are_accepted_for_floats_but_not_the_reverse():
    value = raw()
    value["created_at"] = 5
    assert parse(value).created_at == 5.0
    value["version"] = 3.0
    with pytest.raises(BadInput, match=r"manifest\.version: expected a whole number, got "):
        parse(value)


def at(value, path):
    for part in path:
        value = value[part]
    return value


def put(*path_and_value):
    *path, key, new = path_and_value

    def change(value):
        at(value, path)[key] = new

    return change


def drop(*path):
    def change(value):
        del at(value, path[:-1])[path[-1]]

    return change


def both(*changes):
    def change(value):
        for one in changes:
            one(value)

    return change


def append(*path_and_value):
    *path, new = path_and_value

    def change(value):
        at(value, path).append(copy.deepcopy(new))

    return change


# small's features: 0 user (id), 1 tags (ragged strings), 2.. f0, f1, f2, f3 (columns of one float input)
FLOAT = {"name": "g", "kind": "float", "input": "floats", "column": 0, "offset": 12}
rules = {
    "another format": (put("format", "freshet/3"), "expected format 'freshet/2' or 'freshet/1', got 'freshet/3'"),
    "a format that is no string": (put("format", [1]), "expected format 'freshet/2' or 'freshet/1', got"),
    "an unknown key": (put("colour", "red"), "manifest: unknown key 'colour'"),
    "an unknown key further down": (put("features", 0, "colour", 1), r"manifest\.features\[0\]: unknown key"),
    "a missing model": (drop("model"), "manifest: 'model' is missing"),
    "a string for a number": (put("version", "3"), r"manifest\.version: expected a whole number, got a string"),
    "a truth value for a number": (put("width", True), r"manifest\.width: expected a whole number, got a boolean"),
    "a number for a truth value": (put("inputs", 0, "ragged", 1), "ragged: expected true or false, got a number"),
    "null": (put("arch", None), r"manifest\.arch: expected a string, got null"),
    "an object for a list": (put("features", {}), r"manifest\.features: expected a list, got an object"),
    "a list for an object": (put("files", []), r"manifest\.files: expected an object, got a list"),
    "a number for an entry": (put("tables", 0, 3), r"manifest\.tables\[0\]: expected an object, got a number"),
    "a string in a shape": (put("dense", "mlp_0/bias", ["8"]), "expected a whole number, got a string"),
    "a model with a slash": (put("model", "a/b"), "model: expected a plain name"),
    "a model of 129 letters": (put("model", "a" * 129), "model: expected a plain name"),
    "version 0": (put("version", 0), "version: expected a positive integer, got 0"),
    "width 0": (put("width", 0), "width: expected 1 to 1048576, got 0"),
    "width beyond the limit": (put("width", 2**20 + 1), "width: expected 1 to 1048576"),
    "a second copy of no table": (
        put("copies", {"nobody": ""}),
        r"manifest\.copies: expected names of tables, got 'nobody'",
    ),
    "a second copy in no weight": (
        put("copies", {"user": "w"}),
        r"manifest\.copies\[user\]: expected a dense weight or ''",
    ),
    "an event time of three": (put("event_time", [1, 2, 3]), "event_time: expected .*"),
    "no inputs": (both(put("inputs", []), put("features", [])), "inputs: expected at least one"),
    "no outputs": (put("outputs", []), "outputs: expected at least one"),
    "an input twice": (append("inputs", raw()["inputs"][0]), "inputs: 'user' occurs more than once"),
    "a feature twice": (append("features", raw()["features"][0]), "features: 'user' occurs more than once"),
    "a table twice": (append("tables", raw()["tables"][0]), "tables: 'user' occurs more than once"),
    "an output twice": (append("outputs", {"name": "score"}), "outputs: 'score' occurs more than once"),
    "a feature with a space": (put("features", 0, "name", "a b"), "features: expected a name of letters"),
    "a table that climbs": (put("tables", 0, "name", "../x"), "tables: expected a name of letters"),
    "an unknown dtype": (put("inputs", 0, "dtype", "int32"), "dtype: expected one of int64, float32, string"),
    "negative columns": (put("inputs", 0, "columns", -1), "columns: expected 0 to 65536, got -1"),
    "too many columns": (put("inputs", 0, "columns", 65537), "columns: expected 0 to 65536"),
    "ragged columns": (put("inputs", 1, "columns", 2), r"inputs\[tags\]\.columns: expected 0 for a ragged input"),
    "ragged floats": (put("inputs", 2, "ragged", True), r"inputs\[floats\]\.columns: expected 0 for a ragged input"),
    "a table of dim 0": (put("tables", 0, "dim", 0), r"tables\[user\]\.dim: expected 1 to 4096"),
    "a table of dim 4097": (put("tables", 0, "dim", 4097), "dim: expected 1 to 4096, got 4097"),
    "negative rows": (put("tables", 0, "rows", -1), "rows: expected 0 to"),
    "2**31 rows": (put("tables", 0, "rows", 2**31), "rows: expected 0 to"),
    "a table of float8": (
        put("tables", 0, "dtype", "float8"),
        "dtype: expected one of float32, float16, bfloat16, int8",
    ),
    "a default of the wrong size": (put("tables", 0, "default", [0, 1]), r"default: expected \[\] or 4 numbers, got 2"),
    "a negative hash seed": (put("tables", 1, "hash_seed", -1), "hash_seed: expected 0 to"),
    "a hash seed of 2**63": (put("tables", 1, "hash_seed", 2**63), "hash_seed: expected 0 to"),
    "an unknown kind": (put("features", 0, "kind", "image"), "kind: expected one of id, string, float"),
    "no combiner for one id": (
        put("features", 0, "combiner", "none"),
        "combiner: none requires kind ids or strings, got id",
    ),
    "no combiner and no length": (
        lambda raw: raw["features"][1].update(combiner="none", max_length=0),
        "max_length: expected 1 or more for combiner none, got 0",
    ),
    "no combiner and the width of one row": (
        lambda raw: raw["features"][1].update(combiner="none", max_length=3),
        "width: expected 15, got 4",
    ),
    "an unknown combiner": (put("features", 1, "combiner", "max"), "combiner: expected one of sum, mean, sqrtn, none"),
    "an unknown side": (put("features", 0, "side", "left"), "side: expected one of user, item, context"),
    "an unknown input": (put("features", 0, "input", "who"), "input: 'who' is not among"),
    "an unknown table": (put("features", 0, "table", "who"), "table: 'who' is not among"),
    "a negative max_length": (put("features", 1, "max_length", -1), "max_length: expected 0 to"),
    "an id from floats": (
        put("features", 0, "input", "floats"),
        r"features\[user\]\.input: expected int64, got float32",
    ),
    "a column of a ragged input": (put("features", 1, "column", 0), "column: expected -1 for kind strings"),
    "a column of a plain input": (put("features", 0, "column", 0), "column: expected -1 for an input of shape"),
    "no column of a packed input": (put("features", 2, "column", -1), "column: expected 0 to 3, got -1"),
    "a column beyond the input": (put("features", 2, "column", 4), "column: expected 0 to 3, got 4"),
    "one value of a ragged input": (put("features", 1, "kind", "string"), "expected one value per row for kind"),
    "a float with a table": (put("features", 2, "table", "user"), "expected no table and width 1 for kind float"),
    "a wide float": (put("features", 2, "width", 2), "expected no table and width 1 for kind float"),
    "a width that is not the table's": (put("features", 0, "width", 3), r"features\[user\]\.width: expected 4, got 3"),
    "an offset beyond the width": (
        put("features", 5, "offset", 12),
        "offset: expected a place inside the dense width 12",
    ),
    "a negative offset": (put("features", 0, "offset", -1), "offset: expected a place inside the dense width"),
    "an overlap": (put("features", 1, "offset", 3), "overlap or leave a hole at 3"),
    "a hole": (drop("features", 3), "overlap or leave a hole at 9"),
    "a width that is too large": (put("width", 13), "width: expected 12, the columns that features fill, got 13"),
    "a dense size of 0": (put("dense", "w", [0]), r"dense\['w'\]: expected a shape"),
    "a dense rank of 9": (put("dense", "w", [1] * 9), r"dense\['w'\]: expected a shape"),
    "a backend with a slash": (put("executables", 0, "backend", "../x"), "backend: expected a plain name"),
    "bucket 0": (put("executables", 0, "bucket", 0), "bucket: expected 1 to 1048576"),
    "a huge bucket": (put("executables", 0, "bucket", 2**20 + 1), "bucket: expected 1 to 1048576"),
    "an executable without its file": (put("executables", 0, "file", "x"), "file: not among manifest.files"),
    "an unknown weight": (put("executables", 0, "weights", ["w"]), "weights: 'w' is not among manifest.dense"),
    "a file of negative size": (put("files", "a", {"nbytes": -1, "crc32": ""}), "nbytes: expected 0 or more, got -1"),
    "a number beyond any float": (put("created_at", 10**400), r"manifest\.created_at: expected a finite number"),
    "infinity": (put("features", 2, "scale", float("inf")), r"features\[2\]\.scale: expected a finite number"),
    "NaN in a default row": (put("tables", 0, "default", [0, 0, 0, float("nan")]), "default.*expected a finite number"),
}


@pytest.mark.parametrize(("change", "message"), rules.values(), ids=rules.keys())
def test_error_names_the_field_that_breaks_a_rule(change, message):
    value = raw()
    change(value)
    with pytest.raises(BadInput, match=message):
        parse(value)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../b",
        "/etc/passwd",
        "a//b",
        "",
        ".",
        "..",
        "./a",
        "a/",
        ".hidden",
        "a/.hidden",
        "a\\b",
        "a\0b",
        "a b",
        "/".join("a" * 17),
        "ä",
        "a" * 129,
        "~",
        "-x",
        "a\n",
    ],
)
def test_hidden_file_or_file_outside_the_version_is_refused(path):
    value = raw()
    value["files"][path] = {"nbytes": 0, "crc32": "00000000"}
    with pytest.raises(BadInput, match=r"files: expected a relative path inside the version"):
        parse(value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"nul", b"\xff", b"[" * 100_000, b'{"a": 1' + b"0" * 5000 + b"}", b'{"a": "\xc3"}']
)
def test_invalid_json_is_refused(data):
    with pytest.raises(BadInput, match="not valid JSON"):
        Manifest.from_json(data)


@pytest.mark.parametrize("data", [b"3", b"[]", b"null", b'"x"', b"NaN"])
def test_json_that_is_not_an_object_is_refused(data):
    with pytest.raises(BadInput, match="expected an object"):
        Manifest.from_json(data)


def test_manifest_over_the_size_limit_is_refused_before_parsing(monkeypatch):
    monkeypatch.setattr(manifest_module, "MAX_MANIFEST_NBYTES", 10)
    with pytest.raises(BadInput, match="expected at most 10 bytes, got 11"):
        Manifest.from_json(b"{" * 11)


def test_manifest_that_contradicts_itself_is_not_written():
    with pytest.raises(BadInput, match=r"manifest\.width"):
        dataclasses.replace(GOOD, width=13).to_json()


def test_error_messages_quote_a_bounded_part_of_the_input():
    value = raw()
    value["x" * 100_000] = 1
    with pytest.raises(BadInput) as refused:
        parse(value)
    assert len(str(refused.value)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40)
@given(value=json_values)
def test_arbitrary_json_raises_only_bad_input(value):
    with pytest.raises(BadInput):
        parse(value)


def paths(value, here=()):
    yield here
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(inner, (*here, key))


@settings(max_examples=100)
@given(path=st.sampled_from(sorted((p for p in paths(raw()) if p), key=repr)), value=json_values)
def test_arbitrary_value_in_a_manifest_raises_only_bad_input(path, value):
    whole = raw()
    put(*path, value)(whole)
    try:
        parsed = parse(whole)
    except BadInput:
        return
    assert Manifest.from_json(parsed.to_json()) == parsed


@settings(max_examples=30)
@given(dims=st.lists(st.integers(1, 64), min_size=1, max_size=8), order=st.randoms(use_true_random=False))
def test_features_may_have_any_order_if_they_tile_the_input(dims, order):
    offsets = [sum(dims[:n]) for n in range(len(dims))]
    features = [
        Feature(f"f{n}", "id", "x", column=n, table=f"t{n}", offset=offset, width=dim)
        for n, (offset, dim) in enumerate(zip(offsets, dims))
    ]
    order.shuffle(features)
    built = dataclasses.replace(
        GOOD,
        inputs=[Input("x", "int64", columns=len(dims))],
        features=features,
        tables=[TableEntry(f"t{n}", dim, 0) for n, dim in enumerate(dims)],
        outputs=[Output("score"), Output("other", 3)],
        width=sum(dims),
    )
    assert Manifest.from_json(built.to_json()) == built


def test_table_copies_round_trip_through_the_file():
    held = dataclasses.replace(GOOD, copies={GOOD.tables[0].name: "", GOOD.tables[1].name: "mlp_0/bias"})
    assert Manifest.from_json(held.to_json()) == held
    assert b'"copies"' not in GOOD.to_json()


def test_manifest_without_transforms_is_readable_by_older_servers():
    assert b"transforms" not in GOOD.to_json()


def test_only_imported_models_have_declared_types_and_dims():
    plain = dataclasses.replace(manifest(), executables=[])
    for entry in (*json.loads(plain.to_json())["inputs"], *json.loads(plain.to_json())["outputs"]):
        assert not {"declared", "dims"} & set(entry)
    assert "dtype" not in json.loads(plain.to_json())["outputs"][0]
    user, tags, floats = plain.inputs
    made = dataclasses.replace(
        plain,
        inputs=[
            dataclasses.replace(user, declared="int32", dims=[1]),
            tags,
            dataclasses.replace(floats, declared="float64", dims=[2, 2]),
        ],
        outputs=[Output("score", dims=[], dtype="int64")],
    )
    assert Manifest.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"inputs": {"declared": "float64"}}, "manifest.inputs[user].declared: expected one of"),
        ({"inputs": {"dims": [2]}}, "manifest.inputs[user].dims: expected sizes whose product is 1, got [2]"),
        ({"inputs": {"dims": [-1, -1]}}, "manifest.inputs[user].dims"),
        ({"outputs": {"dims": [2]}}, "manifest.outputs[score].dims: expected sizes whose product is 1, got [2]"),
        ({"outputs": {"dims": [1] * 8}}, "manifest.outputs[score].dims"),
        ({"outputs": {"dtype": "complex64"}}, "manifest.outputs[score].dtype: expected one of"),
    ],
)
def test_invalid_declared_types_are_refused(changes, told):
    document = json.loads(dataclasses.replace(manifest(), executables=[]).to_json())
    for part, values in changes.items():
        document[part][0].update(values)
    with pytest.raises(BadInput) as caught:
        Manifest.from_json(json.dumps(document).encode())
    assert told in str(caught.value)


def test_equal_outputs_of_a_model_are_no_ranking():
    made = ranked.manifest()
    assert ranks_items(dataclasses.replace(made, outputs=RANKED_OUTPUTS["uint64"]))
    assert not ranks_items(dataclasses.replace(made, outputs=[*RANKED_OUTPUTS["uint64"]]))
    assert not ranks_items(made)
