"""Stages in a plan: run once a request, checked like a client; found by entry point or refused."""

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.features.stage import load_stage
from freshet_serving.processor.package import Feature, File, Input, Manifest, Output, StageEntry, TableEntry
from freshet_serving.processor.tables.table import ServedTable, packed
from tests.support.plugins import write_entry_points

DIM = 2


def manifest():
    inputs = [Input("word", "string"), Input("values", "float32", columns=3)]
    features = [
        Feature("values", "floats", "values", column=1, offset=0, width=2),
        Feature("columns", "floats", "columns", offset=2),
        Feature("id", "id", "id", table="rows", offset=3, width=DIM),
        Feature("list", "ids", "list", table="rows", combiner="mean", offset=5, width=DIM),
    ]
    tables, stage = [TableEntry("rows", DIM, 3)], StageEntry("lengths", "stage/graph", outputs())
    return Manifest("imported", 1, "imported", 0.0, inputs, features, tables, [Output("score")], 7, {}, {}, stage=stage)


def outputs():
    return [Input("columns", "float32"), Input("id", "int64"), Input("list", "int64", ragged=True)]


class Lengths:
    """The length of a word, as a float, an id and a list of one."""

    reads = ("word",)

    def __init__(self):
        self.calls = 0

    def run(self, inputs, rows):
        self.calls += 1
        lengths = np.array([len(w) for w in inputs["word"].tolist()] * (rows // len(inputs["word"])), np.int64)
        return {"columns": lengths.astype(np.float32), "id": lengths, "list": Ragged(lengths, np.arange(rows + 1))}


@pytest.fixture
def table():
    rows = np.arange(6, dtype=np.float32).reshape(3, DIM)
    return ServedTable(TableEntry("rows", DIM, 3), packed(np.arange(3, dtype=np.int64), rows))


def fill(plan, table, inputs):
    bound = plan.bind_inputs(inputs)
    x = np.zeros((bound.rows, plan.width), np.float32)
    spans, counts = np.array([[0, bound.rows]], np.int64), np.zeros((1, 2), np.int64)
    plan.fill(BatchView(np.array([table.descriptor()], np.int64), 0, [bound], spans, counts), x)
    return x


def words(*values):
    return Strings.of(values)


def test_features_read_stage_outputs_and_blocks_are_copied_unchanged(table):
    stage = Lengths()
    values = np.array([[1, np.nan, 3], [4, 5, 3e38]], np.float32)
    x = fill(SparsePlan(manifest(), stage), table, {"word": words("a", "bc"), "values": values})

    np.testing.assert_array_equal(x[:, :3], [[np.nan, 3, 1], [5, np.float32(3e38), 2]])
    np.testing.assert_array_equal(x[:, 3:], [[2, 3, 2, 3], [4, 5, 4, 5]])
    assert stage.calls == 1


def test_infinite_inputs_are_refused_but_a_stage_may_produce_them(table):
    class Endless(Lengths):
        reads = ("word",)

        def run(self, inputs, rows):
            return {**super().run(inputs, rows), "columns": np.full(rows, -np.inf, np.float32)}

    stage = Endless()
    plan, inputs = SparsePlan(manifest(), stage), {"word": words("a"), "values": np.zeros((2, 3), np.float32)}
    bound, out = plan.bind_inputs(inputs), np.zeros((2, plan.width), np.float32)
    spans, counts = np.array([[0, 2]], np.int64), np.zeros((1, 2), np.int64)
    plan.fill(BatchView(np.array([table.descriptor()], np.int64), 0, [bound], spans, counts), out)
    assert np.isinf(out).sum() == 2
    inputs["values"][1, 2] = np.inf
    with pytest.raises(BadInput, match=r"input 'values': expected finite numbers .* got inf in row 1, column 2"):
        plan.bind_inputs(inputs)
    assert stage.calls == 1


def test_single_string_row_serves_all_value_rows(table):
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    x = fill(SparsePlan(manifest(), Lengths()), table, {"word": words("a"), "values": values})
    np.testing.assert_array_equal(x, [[1, 2, 1, 2, 3, 2, 3], [4, 5, 1, 2, 3, 2, 3], [7, 8, 1, 2, 3, 2, 3]])
    x = fill(SparsePlan(manifest(), Lengths()), table, {"word": words("a", "bc"), "values": values[:1]})
    np.testing.assert_array_equal(x[:, :2], [[1, 2], [1, 2]])


def test_request_is_checked_before_the_stage_runs(table):
    stage = Lengths()
    plan = SparsePlan(manifest(), stage)
    with pytest.raises(BadInput, match="input 'values'"):
        plan.bind_inputs({"word": words("a"), "values": np.zeros((1, 4), np.float32)})
    with pytest.raises(BadInput, match="'id' is not one of the model's"):
        plan.bind_inputs({"word": words("a"), "values": np.zeros((1, 3), np.float32), "id": np.zeros(1, np.int64)})
    assert stage.calls == 0


def test_runtime_is_found_by_entry_point_and_unknown_one_refused(tmp_path, monkeypatch):
    plugin = "def load(data, inputs, outputs):\n    return data, inputs, outputs\n"
    (tmp_path / "lengths_plugin.py").write_text(plugin)
    info = tmp_path / "lengths-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lengths\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[freshet.stages]\nlengths = lengths_plugin:load\n")
    with pytest.raises(BadInput, match=r"runtime 'lengths' is not installed on this server: .*pip install"):
        load_stage(manifest(), b"data")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()

    assert load_stage(manifest(), b"data") == (b"data", manifest().inputs, outputs())
    sys.modules.pop("lengths_plugin", None)


def test_both_runtimes_are_declared_by_this_package(tmp_path):
    (info,) = write_entry_points(tmp_path).iterdir()
    _, _, stages = (info / "entry_points.txt").read_text().partition("[freshet.stages]\n")
    assert "tensorflow = freshet_serving.compiler.imports.tensorflow_stage:load" in stages.splitlines()
    assert "onnxruntime = freshet_serving.compiler.imports.onnx_native.onnx_stage:load" in stages.splitlines()


def test_manifest_with_a_stage_round_trips_with_consistent_parts():
    whole = replace(manifest(), files={"stage/graph": File(1, "00000000")})
    assert Manifest.from_json(whole.to_json()) == whole
    with pytest.raises(BadInput, match=r"manifest\.stage\.file: not among"):
        manifest().to_json()
    for runtime, made, message in (
        ("lengths", outputs()[:1], "'id' is not among manifest.inputs"),
        ("lengths", [*outputs(), Input("word", "string")], "more than once"),
        ("no name", outputs(), "manifest.stage.runtime"),
    ):
        with pytest.raises(BadInput, match=message):
            replace(whole, stage=StageEntry(runtime, "stage/graph", made)).to_json()


def test_block_stays_inside_its_input():
    whole = manifest()
    features = [replace(whole.features[0], column=2), *whole.features[1:]]
    with pytest.raises(BadInput, match=r"features\[values\].column: expected 0 to 1, got 2"):
        replace(whole, features=features, files={"stage/graph": File(1, "00000000")}).to_json()
