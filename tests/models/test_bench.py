"""The benchmark's model and deltas: made without training, known to the bit, applied like any other."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="writing a model needs the train extra")

from freshet_serving.models.bench import (
    DIM,
    FLOATS,
    LIMIT,
    MODEL,
    TABLES,
    bench_delta,
    bench_manifest,
    write_deltas,
    write_model,
)
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, NotFound
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels.hashing import init_rows
from freshet_serving.processor.package.delta import read_delta
from freshet_serving.processor.package.manifest import validate
from freshet_serving.processor.repository.version import VersionReader, table_file
from freshet_serving.processor.tables.quantise import dequantise, quantise

pytestmark = pytest.mark.tensorflow

ROWS = 40


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("bench") / "repository"
    assert write_model(repository, ROWS) == Generation(1, 0)
    return repository


def rows_of(seed, keys):
    rows = np.empty((len(keys), DIM), np.float32)
    init_rows(np.asarray(keys, np.int64), np.uint64(seed), np.float32(LIMIT), rows)
    return rows


def request(n, seed=0):
    random = np.random.default_rng(seed)
    ids = random.integers(0, ROWS, (n, TABLES))
    return PredictRequest(MODEL, {"ids": ids, "floats": random.standard_normal((n, FLOATS)).astype(np.float32)})


def test_model_has_the_published_shape(repository):
    reader = VersionReader(repository / MODEL / "1")
    reader.verify()
    manifest = reader.manifest
    assert [(i.name, i.dtype, i.columns) for i in manifest.inputs] == [("ids", "int64", 26), ("floats", "float32", 13)]
    assert [(t.dim, t.rows) for t in manifest.tables] == [(16, ROWS)] * 26
    assert manifest.width == 26 * 16 + 13
    assert [(o.name, o.columns) for o in manifest.outputs] == [("score", 1)]
    kernels = sorted((shape for name, shape in manifest.dense.items() if name.startswith("mlp")), reverse=True)
    assert [k for k in kernels if len(k) == 2] == [[1024, 512], [512, 256], [429, 1024], [256, 1]]


def test_manifest_is_valid_for_any_number_of_rows():
    for rows in (1, 20_000_000):
        validate(bench_manifest(rows))


def test_rows_depend_only_on_the_table_and_id(repository):
    reader = VersionReader(repository / MODEL / "1")
    for i in (0, 7, 25):
        table = reader.tensors(table_file(f"c{i}"))
        assert table["keys"].tolist() == list(range(ROWS))
        assert table["rows"].tobytes() == rows_of(i, range(ROWS)).tobytes()
        assert table["rows"][11:12].tobytes() == rows_of(i, [11]).tobytes()


def test_deltas_continue_the_log_and_apply_through_the_processor(repository, tmp_path):
    paths = list(write_deltas(repository, rows=100, count=3, out=tmp_path / "deltas"))
    assert [p.name for p in paths] == ["1.safetensors", "2.safetensors", "3.safetensors"]
    with Processor.initialize(ProcessorConfig(str(repository), sessions=1)) as processor:
        seen = [processor.process(request(8)).outputs["score"]]
        wanted = {i: rows_of(i, range(ROWS)) for i in range(TABLES)}
        for step, path in enumerate(paths, 1):
            delta = read_delta(path)
            assert (delta.step, delta.parent_step, delta.rows, delta.removed) == (step, step - 1, 100, 0)
            assert {len(t.keys) for t in delta.tables.values()} == {3, 4}
            applied = processor.apply_delta(MODEL, data=path.read_bytes())
            assert applied.generation == Generation(1, step)
            for i in range(TABLES):
                keys = delta.tables[f"c{i}"].keys
                wanted[i][keys] = rows_of(step * 1_000_003 + i, keys)
            tables, _ = processor.host.catalogue[MODEL].pick().export()
            for i in range(TABLES):
                assert tables[f"c{i}"][1].tobytes() == wanted[i].tobytes()
            seen.append(processor.process(request(8)).outputs["score"])
        assert all((a != b).any() for a, b in zip(seen, seen[1:]))
    # What was applied is part of the chain now: the next deltas go on top of it.
    (more,) = write_deltas(repository, rows=1, count=1, out=tmp_path / "more")
    assert more.name == "4.safetensors"
    assert read_delta(more).rows == 1


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_smaller_row_types_give_nearly_equal_scores_across_deltas(tmp_path, dtype):
    for name in ("float32", dtype):
        write_model(tmp_path / name, ROWS, dtype=name)
    plain, typed = (
        Processor.initialize(ProcessorConfig(str(r), sessions=1)) for r in (tmp_path / "float32", tmp_path / dtype)
    )
    (delta,) = write_deltas(tmp_path / dtype, rows=300, count=1, out=tmp_path / "deltas")
    with plain, typed:
        table = typed.host.catalogue[MODEL].pick().tables["c0"]
        assert (table.spec.dtype, table.nbytes["rows"]) == (dtype, ROWS * (32 if dtype == "bfloat16" else 20))
        for step in range(2):
            if step:
                typed.apply_delta(MODEL, data=delta.read_bytes())
                plain.apply_delta(MODEL, data=delta.read_bytes())
            scores = [p.process(request(8)).outputs["score"] for p in (plain, typed)]
            np.testing.assert_allclose(scores[1], scores[0], atol=1e-3)
            assert (scores[0] != scores[1]).any()
            plain_rows, typed_rows = (p.host.catalogue[MODEL].pick().export()[0]["c3"][1] for p in (plain, typed))
            assert dequantise(quantise(plain_rows, dtype), dtype).tobytes() == typed_rows.tobytes()


def test_unknown_row_type_is_refused(tmp_path):
    with pytest.raises(BadInput, match="dtype: expected one of float32, float16, bfloat16, int8, got 'int4'"):
        write_model(tmp_path, 5, dtype="int4")


def test_delta_depends_only_on_its_step():
    manifest = bench_manifest(1000)
    first, again, other = (bench_delta(manifest, step, 500) for step in (5, 5, 6))
    for name, table in first.tables.items():
        assert table.keys.tobytes() == again.tables[name].keys.tobytes()
        assert table.rows.tobytes() == again.tables[name].rows.tobytes()
        assert len(np.unique(table.keys)) == len(table.keys)
        assert table.keys.min() >= 0
        assert table.keys.max() < 1000
        assert np.abs(table.rows).max() <= np.float32(LIMIT)
    assert any(t.keys.tobytes() != other.tables[n].keys.tobytes() for n, t in first.tables.items())


def test_all_rows_can_change_at_once_but_not_more(repository, tmp_path):
    (path,) = write_deltas(repository, rows=ROWS * TABLES, count=1, out=tmp_path)
    assert read_delta(path).rows == ROWS * TABLES
    with pytest.raises(
        BadInput, match=f"^rows: expected at most {ROWS * TABLES} for this model, got {ROWS * TABLES + 1}$"
    ):
        list(write_deltas(repository, rows=ROWS * TABLES + 1, count=1, out=tmp_path / "none"))


@pytest.mark.parametrize("numbers", [dict(rows=0, count=1), dict(rows=1, count=0), dict(rows=-5, count=2)])
def test_less_than_one_row_or_delta_is_refused(repository, tmp_path, numbers):
    with pytest.raises(BadInput, match="expected 1 or more"):
        list(write_deltas(repository, out=tmp_path, **numbers))


@pytest.mark.parametrize("rows", [0, -1, 2**31])
def test_model_without_rows_or_with_too_many_is_refused(tmp_path, rows):
    with pytest.raises(BadInput, match=f"got {rows}"):
        write_model(tmp_path, rows)
    assert not list(tmp_path.iterdir())


def test_deltas_for_a_missing_model_are_refused(tmp_path):
    with pytest.raises(NotFound, match="freshet bench model"):
        list(write_deltas(tmp_path, 1, 1, tmp_path / "out"))


def test_writing_again_adds_the_next_version_with_its_seed(repository, tmp_path):
    assert write_model(tmp_path, 5, seed=1) == Generation(1, 0)
    assert write_model(tmp_path, 5, seed=2) == Generation(2, 0)
    for version in (1, 2):
        table = VersionReader(tmp_path / MODEL / str(version)).tensors(table_file("c3"))
        assert table["rows"].tobytes() == rows_of(version * 1000 + 3, range(5)).tobytes()
