"""The comparison of several processes and one, by optimizer, and its page."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")
pytest.importorskip("mpi4py", reason="several processes need the mpi extra")

from loadtest.bench.training import process_auc, process_grid

pytestmark = pytest.mark.tensorflow


def results(scores=1e-6, auc=0.7):
    of = {n: {"scores": scores, "auc": auc} for n in process_grid.PROCESSES}
    origin = {"command": "make -C loadtest processes-grid", "date": "2026-11-23"}
    machine = {"cores": 2, "cpu": "a processor"}
    return {"machine": machine, "origin": origin, "optimizers": {"ftrl": {"auc": 0.7, "processes": of}}}


def test_deviating_scores_or_auc_are_misses():
    assert process_grid.passed(results())
    assert not process_grid.passed(results(scores=2e-5))
    assert not process_grid.passed(results(auc=0.7002))


def test_page_has_a_line_for_every_optimizer():
    assert "| ftrl | 0.70000 | 1.0e-06, +0.000200 | 1.0e-06, +0.000200 | 1.0e-06, +0.000200 |" in process_grid.page(
        results(auc=0.7002)
    )


def test_output_of_a_side_is_parsed_as_scores_and_auc(monkeypatch):
    def said(processes, *options):
        assert (processes, options) == (3, ("--rows", "512", "--optimizer", "sgd"))
        return {"scores": np.array([0.25, 0.5], np.float32).tobytes().hex(), "auc": "0.625"}

    monkeypatch.setattr(process_grid, "said_by", said)
    scores, auc = process_grid.learned("sgd", 3, 512)
    assert scores.tolist() == [0.25, 0.5]
    assert auc == 0.625


@pytest.mark.long
def test_single_process_prints_scores_and_an_auc(capfd):
    process_auc.learn_stream(256 * 102, "float32", "adagrad", None)
    first, second = (line.split() for line in capfd.readouterr().out.splitlines())
    assert (first[0], second[0]) == ("scores", "auc")
    scores = np.frombuffer(bytes.fromhex(first[1]), np.float32)
    assert scores.shape == (256,)
    assert ((scores > 0) & (scores < 1)).all()
    assert float(second[1]) > 0.5
