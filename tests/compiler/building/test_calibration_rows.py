"""Rows to measure by: of traffic, of labelled data, and drawn from the tables."""

import json
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.compiler.building.calibration_rows import random_inputs, read_labelled, read_sample
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Feature
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.building.versions import DIM, compiled, parquet, scores
from tests.support.packages import open_version


def noting(folder, labels):
    """The version, which notes which output is the probability of which label."""
    manifest = json.loads((folder / "model.json").read_text())
    manifest["notes"]["labels"] = labels
    (folder / "model.json").write_text(json.dumps(manifest))
    return VersionReader(folder)


def test_invalid_sample_is_refused(tmp_path):
    path = tmp_path / "s.parquet"
    for columns, message in (
        ({"n": [1]}, "expected column 'rows', got n"),
        ({"rows": [1.5]}, "expected whole numbers in column 'rows', got float64"),
    ):
        with pytest.raises(BadInput, match=message):
            read_sample(parquet(path, **columns))
    path.write_bytes(b"PAR1 no")
    with pytest.raises(BadInput, match=r"s\.parquet: expected a Parquet file"):
        read_sample(path)


def test_labelled_rows_become_request_inputs(folder, tmp_path):
    n = 6
    floats = np.linspace(-1, 1, 2 * n, dtype=np.float32).reshape(n, 2)
    path = parquet(
        tmp_path / "d.parquet",
        user=list(range(n)),
        tags=[[i % 5, 77] for i in range(n)],
        a=floats[:, 0],
        b=floats[:, 1],
        clicked=[0, 1] * 3,
    )
    reader = VersionReader(folder)
    labelled = read_labelled(reader, path, "clicked")
    assert labelled.labels.tolist() == [0, 1] * 3
    graph = DenseGraph.load(folder / "graph", reader.dense())
    np.testing.assert_allclose(graph.run(labelled.inputs)["score"][:, 0], scores(open_version(folder), n), atol=1e-5)
    for noted, output in (({"clicked": "ctr"}, "ctr"), ({"bought": "cvr"}, ""), ({"clicked": 3}, ""), ([1], "")):
        assert read_labelled(noting(folder, noted), path, "clicked").output == output
    report = compiled(folder, data=path, label="clicked")
    assert report.manifest.notes["compile"]["auc_change"] == {"onnxruntime": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clicked": [0, 2]}, "column 'clicked': expected 0 or 1"),
        ({"label": [0, 1]}, "expected column 'clicked'"),
        ({"a": None}, "expected column 'a'"),
        ({"tags": [1, 2]}, "column 'tags': expected a list a row"),
        ({"user": [[1], [2]]}, "column 'user': expected one value a row"),
    ],
)
def test_mismatched_labelled_rows_are_refused(change, message, folder, tmp_path):
    columns = {"user": [1, 2], "tags": [[1], [2]], "a": [0.1, 0.2], "b": [0.1, 0.2], "clicked": [0, 1]} | change
    if "label" in change:
        del columns["clicked"]
    path = parquet(tmp_path / "d.parquet", **{k: v for k, v in columns.items() if v is not None})
    with pytest.raises(BadInput, match=message):
        read_labelled(VersionReader(folder), path, "clicked")


def test_drawn_rows_come_from_the_tables(folder):
    reader = VersionReader(folder)
    inputs = random_inputs(reader, 200)
    x = inputs["x"]
    users = reader.tensors("tables/user.safetensors")["rows"]
    assert inputs.keys() == {"x"}
    assert x.shape == (200, reader.manifest.width)
    assert all((users == row).all(1).any() for row in x[:, :DIM])
    np.testing.assert_array_equal(x, random_inputs(reader, 200)["x"])
    assert abs(x[:, 2 * DIM :].std() - 1) < 0.2


def test_unpooled_rows_are_drawn_with_their_mask(folder):
    manifest = VersionReader(folder).manifest
    feature = Feature("t", "ids", "tags", table="tag", combiner="none", max_length=3, width=3 * (DIM + 1))

    class Reader:
        tensors = VersionReader(folder).tensors

    Reader.manifest = replace(manifest, features=[feature], width=feature.width)
    x = random_inputs(Reader(), 100)["x"]
    mask = x[:, 3 * DIM :]
    assert set(np.unique(mask)) == {0.0, 1.0}
    present = (x[:, : 3 * DIM].reshape(100, 3, DIM) != 0).any(2)
    np.testing.assert_array_equal(present, mask.astype(bool))
