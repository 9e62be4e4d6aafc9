from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.compiler.building import parts as compiling
from freshet_serving.compiler.building.compile import compile_graph, load
from freshet_serving.compiler.building.parts import USER_BUCKETS, parts
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.models.zoo.deepfm import build
from freshet_serving.processor.package import SequenceEntry
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import ExecutableEntry, Feature, Input, Output, TableEntry
from freshet_serving.processor.package.sequences import SequenceColumn
from tests.compiler.passes.graphs import assert_same
from tests.models.zoo.layouts import make_layout

LADDER = (1, 16, 64, 256)
USER = [Feature(f"u{i}", "id", f"u{i}", side="user", table="t", offset=8 * i, width=8) for i in range(3)]
ITEM = [Feature(f"i{i}", "id", f"i{i}", side="item", table="t", offset=24 + 8 * i, width=8) for i in range(3)]
FLOATS = [Feature("f", "float", "f", offset=48)]


def network(seed=1):
    return DenseGraph.from_keras(build(make_layout(*[8] * 6, 0), (64, 16), seed=seed).scores)


@pytest.fixture(scope="module")
def graph():
    return network()


@pytest.fixture(scope="module")
def divided(graph):
    return parts(graph, USER + ITEM + FLOATS, LADDER)


def test_graph_with_user_features_is_compiled_whole_and_split(graph, divided):
    found = divided

    assert {name: part.buckets for name, part in found.by_subgraph.items()} == {
        "whole": list(LADDER),
        "user": list(USER_BUCKETS),
        "score": [64, 256],
    }
    assert sum(length for _, length in found.user_split.tensors) > 64
    assert [part.graph.width for part in found.by_subgraph.values()] == [49, 24, 25]
    candidates = found.by_subgraph["score"].graph.inputs
    assert candidates == {"x": (None, 25), **{name: (1, length) for name, length in found.user_split.tensors}}
    assert found.notes == []
    assert "user-once" in str(found.user_split)
    assert_same(graph, found.by_subgraph["whole"].graph, atol=1e-4)


@pytest.mark.parametrize(
    ("features", "buckets", "noted"),
    [
        (ITEM + FLOATS, LADDER, False),
        (USER + ITEM + FLOATS, (1, 16), True),
        ([*USER[:1], Feature("both", "id", "u0", table="t", offset=8, width=8), *ITEM, *FLOATS], LADDER, False),
    ],
    ids=["no user", "no large bucket", "inputs of both sides"],
)
def test_graph_that_gains_nothing_is_compiled_whole(features, buckets, noted, graph):
    found = parts(graph, features, buckets)

    assert list(found.by_subgraph) == ["whole"]
    assert (found.user_split, bool(found.notes)) == (None, noted)


def test_every_part_compiles_and_scores_like_tensorflow(divided, tmp_path):
    files = set()

    for name, part in divided.by_subgraph.items():
        entries = compile_graph(part.graph, tmp_path, part.buckets, subgraph=name)
        files |= {entry.file for entry in entries}
        assert {entry.subgraph for entry in entries} == {name}
        largest = entries[-1]
        (program,) = load(part.graph, tmp_path, [largest]).programs
        loaded = program.with_weights(part.graph.weights)[largest.bucket]
        given = part.graph.sample(largest.bucket)
        got = part.graph.spec.allocate_outputs(largest.bucket)
        loaded.bind_buffers(given, got)()
        for output, values in part.graph.run(given).items():
            np.testing.assert_allclose(got[output], values, atol=1e-4)

    assert len(files) == len(LADDER) + len(USER_BUCKETS) + 2
    assert all((tmp_path / file).is_file() for file in files)


def test_graph_broken_by_the_passes_is_compiled_unchanged(graph, monkeypatch):
    class Wrong:
        graph, effects, flops = network(seed=2), ["done"], 1

    Wrong.graph = replace(Wrong.graph, weights=network(seed=5).weights)
    monkeypatch.setattr(compiling, "optimise", lambda dense: Wrong)

    found = parts(graph, ITEM + FLOATS, LADDER)

    assert found.by_subgraph["whole"].graph is graph
    assert found.effects == []
    assert "computes something else" in found.notes[0]
    assert found.row_flops > 2 * 49 * 64


def described(found, executables):
    tables, inputs = [TableEntry("t", 8, 0)], [Input(f.input, f.kind.replace("id", "int64")) for f in USER + ITEM]
    draft = Manifest("m", 1, "deepfm", 0.0, inputs, USER + ITEM, tables, [Output("score")], 48, {}, {})
    return found.described(draft, executables)


def test_flops_of_each_listed_subgraph_are_noted(divided):
    executables = [
        ExecutableEntry("onnxruntime", "cpu", 1, "f", "s", [], subgraph=n) for n in ("whole", "user", "score")
    ]
    whole, candidate, user = divided.user_split.flops
    assert described(divided, executables).notes["flops"] == {"whole": whole, "score": candidate, "user": user}
    assert described(divided, executables[:1]).notes["flops"] == {"score": whole}
    # Products with the weights are most of the work, and the user's columns are half of the first layer's.
    assert 2 * (49 * 64 + 64 * 16 + 16) < whole < 3 * (49 * 64 + 64 * 16 + 16)
    assert candidate < whole - 2 * 24 * 64 + 64


def test_heavy_rows_are_compiled_for_few_at_once(graph, divided, monkeypatch):
    whole, _, user = divided.user_split.flops
    monkeypatch.setattr(compiling, "MOST_FLOPS", 16 * whole)
    found = parts(graph, USER + ITEM + FLOATS, LADDER)
    assert found.by_subgraph["whole"].buckets == [1, 16]
    assert found.by_subgraph["user"].buckets == [1, 4, 16]
    assert found.by_subgraph["score"].buckets == [64, 256]
    monkeypatch.setattr(compiling, "MOST_FLOPS", user - 1)
    assert parts(graph, USER + ITEM + FLOATS, LADDER).by_subgraph["user"].buckets == [1]


def sequence(length):
    return SequenceEntry("h", [SequenceColumn("h.i", "ids", "h.i", "t", 0, 9 * length)], length, 9 * length, ["h.i"])


@pytest.mark.parametrize(
    ("longest", "halves"), [(1024, [512, 256, 128, 64]), (256, [128, 64, 32]), (101, [51]), (64, [32]), (50, [])]
)
def test_halves_of_the_longest_history_are_compiled_for(longest, halves):
    assert compiling.lengths([sequence(5), sequence(longest)]) == halves
