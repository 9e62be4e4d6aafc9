"""Executables opened apart: the same scores, kept as long as they are of use, and no longer."""

import gc

import numpy as np

from processor.explaining import spare_executable
from processor.explaining.spare_executable import SpareExecutables
from tests.packages import BUCKETS, make_weights, open_version, write_package
from tests.processor.backends.artefacts import WIDTH, expected


def x_of(rows=5):
    return np.random.default_rng(3).standard_normal((rows, WIDTH)).astype(np.float32)


def test_any_bucket_scores_any_number_of_rows_as_the_network_does(tmp_path):
    version, spares = open_version(write_package(tmp_path)), SpareExecutables()
    for bucket in BUCKETS:
        spare = spares.get(version, bucket, version.dense)
        assert (spare.entry.bucket, spare.computes) == (bucket, "onnxruntime float32")
        np.testing.assert_allclose(spare.scores(x_of())["score"], expected(x_of(), make_weights(0)), atol=1e-6)


def test_it_is_opened_once_and_packed_once_for_the_same_weights(tmp_path, monkeypatch):
    version, spares, opened = open_version(write_package(tmp_path)), SpareExecutables(), []
    real = spare_executable.open_programs
    monkeypatch.setattr(spare_executable, "open_programs", lambda *given: opened.append(given) or real(*given))
    first = spares.get(version, 4, version.dense)
    assert spares.get(version, 4, dict(version.dense)) is first
    other = spares.get(version, 4, make_weights(1))
    assert other is not first
    np.testing.assert_allclose(other.scores(x_of())["score"], expected(x_of(), make_weights(1)), atol=1e-6)
    assert spares.get(version, 4, version.dense) is first, "both sides of a comparison are kept"
    assert len(opened) == 1
    assert [e.bucket for e in opened[0][0].manifest.executables] == [4]


def test_few_buckets_and_weights_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(spare_executable, "KEPT", 2)
    version, spares = open_version(write_package(tmp_path)), SpareExecutables()
    first = spares.get(version, 1, version.dense)
    for bucket in BUCKETS[1:]:
        spares.get(version, bucket, version.dense)
    assert spares.get(version, 1, version.dense) is not first
    for seed in range(1, 4):
        spares.get(version, 1, make_weights(seed))
    ((kept,),) = [[len(b.packed) for n, b in spares._kept[version].items() if n == 1]]
    assert kept == spare_executable.WEIGHTS_KEPT


def test_what_is_kept_goes_with_its_version(tmp_path):
    version, spares = open_version(write_package(tmp_path)), SpareExecutables()
    spares.get(version, 1, version.dense)
    version.close()
    del version
    gc.collect()
    assert len(spares._kept) == 0
