"""Executables opened apart: the same scores, kept as long as they are of use, and no longer."""

import gc

import numpy as np
import pytest

from freshet_serving.processor.extensions.explaining import spare_executable
from freshet_serving.processor.extensions.explaining.spare_executable import ScoringPath, SpareExecutables
from freshet_serving.processor.package.subgraphs import SCORE
from freshet_serving.processor.repository.version import VersionReader
from tests.processor.backends.artefacts import WIDTH, expected
from tests.support.packages import BUCKETS, make_weights, write_package

DENSE = make_weights(0)


@pytest.fixture
def files(tmp_path):
    return VersionReader(write_package(tmp_path))


def got(spares, files, bucket, dense=DENSE):
    return spares._get(files, (SCORE, bucket), dense)


def x_of(rows=5):
    return {"x": np.random.default_rng(3).standard_normal((rows, WIDTH)).astype(np.float32)}


def test_every_bucket_scores_any_row_count_like_the_network(files):
    spares = SpareExecutables()
    for bucket in BUCKETS:
        ran = spares.score(files, ScoringPath(bucket), DENSE, x_of())
        assert (ran.entry.bucket, ran.computes) == (bucket, "onnxruntime float32")
        np.testing.assert_allclose(ran.outputs["score"], expected(x_of()["x"], DENSE), atol=1e-6)
        assert ran.open_s >= 0
        assert ran.execute_s > 0


def test_executable_is_opened_and_packed_once_for_equal_weights(files, monkeypatch):
    spares, opened = SpareExecutables(), []
    real = spare_executable.open_programs
    monkeypatch.setattr(spare_executable, "open_programs", lambda *a, **b: opened.append(a) or real(*a, **b))
    first, other = got(spares, files, 4), got(spares, files, 4, make_weights(1))
    assert other is not first
    assert got(spares, files, 4, dict(DENSE)) is first, "both sides of a comparison are kept"
    np.testing.assert_allclose(
        spares.score(files, ScoringPath(4), make_weights(1), x_of()).outputs["score"],
        expected(x_of()["x"], make_weights(1)),
        atol=1e-6,
    )
    assert len(opened) == 1
    assert [e.bucket for e in opened[0][0].manifest.executables] == [4]


def test_cache_keeps_few_buckets_and_weights(files, monkeypatch):
    monkeypatch.setattr(spare_executable, "KEPT", 2)
    spares = SpareExecutables()
    first = got(spares, files, 1)
    for bucket in BUCKETS[1:]:
        got(spares, files, bucket)
    assert got(spares, files, 1) is not first
    for seed in range(1, 4):
        got(spares, files, 1, make_weights(seed))
    assert len(spares._kept[files][SCORE, 1].packed) == spare_executable.WEIGHTS_KEPT


def test_cached_executables_are_freed_with_their_version(tmp_path):
    files, spares = VersionReader(write_package(tmp_path)), SpareExecutables()
    spares.score(files, ScoringPath(1), DENSE, x_of())
    del files
    gc.collect()
    assert len(spares._kept) == 0
