"""`freshet delta make` for a version that ONNX Runtime computes as it is."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.onnx_stage import SINGLE_KEY
from freshet_serving.compiler.imports.retrained import read_retrained
from freshet_serving.models.publishing.publisher import Publisher
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.model_repository import Repository
from tests.compiler.imports.onnx_native.native_models import (
    FREE_ATTENTION,
    FREE_ATTENTION_WEIGHTS,
    FREE_GRU,
    GRU_WEIGHTS,
    LSTM,
    LSTM_WEIGHTS,
    regressor,
    spelled,
)
from tests.compiler.imports.replies import replies

SMALL = ImportOptions(buckets=(1, 4))
INPUTS = {"history": np.arange(20).reshape(4, 5), "dense": np.ones((4, 2), np.float32)}


@pytest.fixture
def repository(tmp_path):
    import_model(spelled(tmp_path / "first.onnx", LSTM, **LSTM_WEIGHTS), tmp_path / "models", "m", options=SMALL)
    return tmp_path / "models"


def retrained():
    return {k: v * np.float32(1.5) if v.dtype == np.float32 else v for k, v in LSTM_WEIGHTS.items()}


def test_retrained_file_becomes_rows_and_weights(repository, tmp_path):
    path = spelled(tmp_path / "second.onnx", LSTM, **retrained())
    export = read_retrained(path, Repository(repository).version("m"), ImportOptions())
    Publisher(repository, "m").publish_difference(export.tables, export.dense, hashed=True)
    import_model(path, tmp_path / "again", "m", options=SMALL)

    got, wanted = (replies(folder, "m", INPUTS)["score"] for folder in (repository, tmp_path / "again"))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_rows_and_weights_that_a_stage_reads_are_published(tmp_path):
    import_model(spelled(tmp_path / "first.onnx", FREE_GRU, **GRU_WEIGHTS), tmp_path / "models", "free", options=SMALL)
    version = Repository(tmp_path / "models").version("free")
    rows = {"items__weight": GRU_WEIGHTS["items__weight"] * np.float32(2)}
    path = spelled(tmp_path / "second.onnx", FREE_GRU, **GRU_WEIGHTS | rows)
    export = read_retrained(path, version, ImportOptions())
    Publisher(tmp_path / "models", "free").publish_difference(export.tables, export.dense, hashed=True)
    import_model(path, tmp_path / "again", "free", options=SMALL)

    inputs = {"history": Ragged.of([[1, 2, 3], [4, 5, 6]]), "target": np.array([7, 8])}
    got, wanted = (replies(tmp_path / folder, "free", inputs)["score"] for folder in ("models", "again"))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    weights = {"W": GRU_WEIGHTS["W"] * np.float32(2)}
    other = spelled(tmp_path / "third.onnx", FREE_GRU, **GRU_WEIGHTS | weights)
    export = read_retrained(other, version, ImportOptions())
    Publisher(tmp_path / "models", "free").publish_difference(export.tables, export.dense, hashed=True)
    import_model(other, tmp_path / "moved", "free", options=SMALL)
    got, wanted = (replies(tmp_path / folder, "free", inputs)["score"] for folder in ("models", "moved"))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_stage_whose_inputs_may_have_one_row_takes_deltas(tmp_path):
    first = spelled(tmp_path / "first.onnx", FREE_ATTENTION, **FREE_ATTENTION_WEIGHTS)
    import_model(first, tmp_path / "models", "free", options=SMALL)
    version = Repository(tmp_path / "models").version("free")
    assert SINGLE_KEY.encode() in version.file("stage/graph.onnx")

    export = read_retrained(first, version, ImportOptions())
    assert export.tables.keys() == {table.name for table in version.root_manifest.tables}


def test_other_network_is_refused(repository, tmp_path):
    version = Repository(repository).version("m")
    other = LSTM.replace("score = MatMul (both", "bent = Tanh (both)\n score = MatMul (bent")
    with pytest.raises(BadInput, match=r"the network itself differs.*import it as a new version"):
        read_retrained(spelled(tmp_path / "other.onnx", other, **LSTM_WEIGHTS), version, ImportOptions())
    small = LSTM_WEIGHTS | {"top__weight": LSTM_WEIGHTS["top__weight"].repeat(2, 1)}
    wide = spelled(tmp_path / "wide.onnx", LSTM.replace("batch, 1] score", "batch, 2] score"), **small)
    with pytest.raises(BadInput, match=r"dense weight 'top\.weight': expected shape"):
        read_retrained(wide, version, ImportOptions())


def test_trees_are_constants(tmp_path):
    import_model(regressor(tmp_path / "first.onnx"), tmp_path / "models", "trees")
    version = Repository(tmp_path / "models").version("trees")
    with pytest.raises(BadInput, match=r"a constant in it \(trees, coefficients\)"):
        read_retrained(regressor(tmp_path / "second.onnx", trees=21), version, ImportOptions())
