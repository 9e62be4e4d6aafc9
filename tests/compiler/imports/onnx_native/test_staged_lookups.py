"""Lookups over free lengths are cut out of graphs that ONNX Runtime computes as a stage: deltas reach every use."""

import numpy as np
import onnx
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.onnx_stage import OnnxStage
from freshet_serving.compiler.imports.onnx_native.staged_lookups import StagedLookup, find_staged_lookups
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.onnx_native import native_models
from tests.compiler.imports.onnx_native.native_models import DIM, ITEMS, own_scores, spelled
from tests.compiler.imports.replies import started

A, B, OTHER = 3, 8, 12
MODELS = {
    "gru": (native_models.FREE_GRU, native_models.GRU_WEIGHTS, 0),
    "attention": (native_models.FREE_ATTENTION, native_models.FREE_ATTENTION_WEIGHTS, 1),
}


@pytest.fixture(scope="module", params=MODELS)
def imported(request, tmp_path_factory):
    """(name, file, repository) of a model whose target and history share a table."""
    name = request.param
    text, weights, microsoft = MODELS[name]
    folder = tmp_path_factory.mktemp(name)
    path = spelled(folder / f"{name}.onnx", text, microsoft=microsoft, **weights)
    import_model(path, folder / "models", name, options=ImportOptions(buckets=(1, 8, 64)))
    return name, path, folder / "models"


def asked(processor, name, history, target):
    ragged = Ragged(history.ravel(), np.arange(len(history) + 1) * history.shape[1])
    return processor.process(PredictRequest(name, {"history": ragged, "target": target})).outputs["score"]


def drawn(rows, length, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, ITEMS, (rows, length)), random.integers(0, ITEMS, rows)


@pytest.mark.parametrize("length", [0, 1, 7, 50, 300])
def test_scores_equal_the_file_s_for_every_length(imported, length):
    name, path, repository = imported
    history, target = drawn(70, length)
    with started(repository) as processor:
        if not length and name == "gru":
            # ONNX Runtime ends the process for a GRU without steps.
            with pytest.raises(
                BadInput, match="'history': expected at least one value a row: the model has recurrent layers"
            ):
                asked(processor, name, history, target)
            return
        got = asked(processor, name, history, target)
    wanted = own_scores(path, {"history": history, "target": target})["score"]
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)


def test_one_history_serves_every_candidate(imported):
    name, path, repository = imported
    history, target = drawn(90, 6)
    with started(repository) as processor:
        got = asked(processor, name, history[:1], target)
    same = np.repeat(history[:1], 90, 0)
    wanted = own_scores(path, {"history": same, "target": target})["score"]
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)


def test_requests_of_one_batch_do_not_change_each_other(imported):
    name, _, repository = imported
    requests = [drawn(rows, length, rows) for rows, length in ((1, 1), (3, 50), (2, 7), (1, 300))]
    with started(repository) as processor:
        alone = [asked(processor, name, *one) for one in requests]
        plan = processor.predictor.replica(name).plan
        state = processor.predictor.replica(name).pin(0)
        bound = [
            plan.bind_inputs({"history": Ragged(h.ravel(), np.arange(len(h) + 1) * h.shape[1]), "target": t})
            for h, t in requests
        ]
        x = np.zeros((7, plan.width), np.float32)
        spans = np.array([[0, one.rows] for one in bound])
        plan.fill(BatchView(state.tables, state.epoch, bound, spans, np.zeros((1, 2), np.int64)), x)
        processor.predictor.replica(name).unpin(0)
    np.testing.assert_array_equal(x[:, 0], np.concatenate([scores.ravel() for scores in alone]))


def test_copied_row_scores_alike_in_every_use(imported):
    name, _, repository = imported
    manifest = VersionReader(repository / name / "1").manifest
    assert [(t.name, t.dim, t.rows) for t in manifest.embeddings] == [("items.weight", DIM, ITEMS)]
    assert [(one.input, one.table) for one in manifest.stage.lookups if not one.whole] == [
        ("history", "items.weight"), ("target", "items.weight"),
    ]  # fmt: skip

    def scores(processor, item):
        in_history = asked(processor, name, np.array([[OTHER, item]]), np.array([OTHER]))
        return float(in_history[0].item()), float(asked(processor, name, np.array([[OTHER]]), np.array([item])).item())

    with started(repository) as processor:
        before = [scores(processor, item) for item in (A, B)]
        publisher = Publisher(repository, name)
        _, rows = publisher.served().rows("items.weight", np.array([B]))
        publisher.publish({"items.weight": (np.array([A]), rows)})
        processor.poll()
        after = [scores(processor, item) for item in (A, B)]
    assert all(abs(a - b) > 1e-4 for a, b in zip(*before))
    assert after[0] == after[1] == before[1]


MOVED = """g (int64[n, any] a, int64[n, any] b) => (float[n, 4] score) {
    both = Concat <axis: int = 1> (a, b)
    turned = Transpose <perm = [1, 0]> (both)
    rows = Gather (t, turned)
    most = ReduceMax <axes = [0], keepdims: int = 0> (rows)
    score = Shrink <lambd: float = 0.1> (most)
}"""


def test_ids_of_two_inputs_may_be_joined(tmp_path):
    path = spelled(tmp_path / "moved.onnx", MOVED, t=native_models.normal(ITEMS, 4))
    import_model(path, tmp_path / "models", "moved", options=ImportOptions(buckets=(1, 8)))
    a, b = drawn(5, 3)[0], drawn(5, 9, 1)[0]
    inputs = {k: Ragged(v.ravel(), np.arange(6) * v.shape[1]) for k, v in (("a", a), ("b", b))}
    with started(tmp_path / "models") as processor:
        got = processor.process(PredictRequest("moved", inputs)).outputs["score"]
    np.testing.assert_allclose(got, own_scores(path, {"a": a, "b": b})["score"], rtol=1e-5, atol=1e-5)


def test_named_nodes_above_the_ids_may_have_other_readers(tmp_path):
    """GPT-2 by dynamo: the ids are looked up and masked by, and every node has a name."""
    text = """g (int64[n, any] a) => (float[n, 4] score) {
        size = Shape (a)
        ids = Reshape (a, size)
        rows = Gather (t, ids)
        padding = Equal (ids, zero)
        padded = Unsqueeze (padding, last)
        kept = Where (padded, none, rows)
        score = ReduceMax <axes = [1], keepdims: int = 0> (kept)
    }"""
    constants = {"zero": np.array(0), "last": np.array([-1]), "none": np.zeros((), np.float32)}
    path = spelled(tmp_path / "named.onnx", text, t=native_models.normal(ITEMS, 4), **constants)
    proto = onnx.load(path)
    for node in proto.graph.node:
        node.name = f"node_{node.op_type}"
    onnx.save(proto, path)
    importer = NativeImporter(path, "")
    draft = importer.draft()
    entry = draft.stage

    assert [one.table for one in entry.lookups if not one.whole] == ["t"]
    OnnxStage(draft.stage_data, draft.manifest("named", 1).inputs, entry.outputs, entry.lookups)


def found(folder, text, **weights):
    return find_staged_lookups(read_native(spelled(folder / "g.onnx", text, **weights)))


REST = "most = ReduceMax <axes = [1], keepdims: int = 0> (rows) score = Shrink (most)"


@pytest.mark.parametrize(
    ("ids", "more", "why"),
    [
        ("Mul (a, a)", "", "its ids are computed in the graph"),
        ("Gather (remap, a)", "", "its ids are computed in the graph"),
        ("Identity (a)", "twice = Mul (t, t)", "Mul reads it too"),
    ],
)
def test_embedding_that_cannot_be_cut_is_named(tmp_path, ids, more, why):
    outputs = "(float[n, 4] score, float[m, 4] twice)" if more else "(float[n, 4] score)"
    text = f"g (int64[n, any] a) => {outputs} {{ ids = {ids} rows = Gather (t, ids) {REST} {more} }}"
    weights = {"t": native_models.normal(9, 4), "remap": np.arange(9)}
    lookups, notes = found(tmp_path, text, **weights)
    assert lookups == []
    assert notes == [f"embedding 't' is a constant, which takes no deltas: {why}"]


def test_embedding_of_another_type_or_opset_is_named(tmp_path):
    text = (
        f"g (int64[n, any] a) => (float[n, 4] score) {{ half = Gather (t, a) rows = Cast <to: int = 1> (half) {REST} }}"
    )
    _, notes = found(tmp_path, text, t=native_models.normal(9, 4).astype(np.float16))
    assert notes == ["embedding 't' is a constant, which takes no deltas: it is float16 of shape [9, 4]"]
    text = f"g (int64[n, any] a) => (float[n, 4] score) {{ rows = Gather (t, a) {REST} }}"
    _, notes = found(tmp_path, text, opset=10, t=native_models.normal(9, 4))
    assert "the graph is of opset 10; 11 or later can be cut" in notes[0]
    lookups, notes = found(tmp_path, text, t=native_models.normal(9, 4))
    assert (lookups, notes) == ([StagedLookup("rows", "t", ("a",))], [])
