"""The race of networks over histories with runs that are made up: what is tried, kept and shown."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training import sequence_quality as module
from loadtest.bench.training.sequence_quality import SEEDS, WAYS, Runs, page, race

AUCS = {"deepfm": 0.75, "din": 0.77, "stca": 0.766}


@pytest.fixture
def ran(monkeypatch):
    """The runs that were made, in order; the peer likes its second settings best."""
    found = []

    def freshet(rows, arch, seed):
        found.append((arch, seed))
        return {"auc": AUCS[arch] + seed / 1000, "epochs": 2, "choosing": 0.8}

    def fuxictr(python, rows, way, seed):
        found.append((WAYS.index(way), seed))
        return {"auc": 0.7705, "epochs": 3, "choosing": 0.8 - abs(WAYS.index(way) - 1)}

    monkeypatch.setattr(module, "freshet_run", freshet)
    monkeypatch.setattr(module, "fuxictr_run", fuxictr)
    return found


def raced(folder, rows=100, python="python"):
    runs = Runs(folder, rows, Console(file=io.StringIO()))
    race(runs, SimpleNamespace(save_coded=Path.touch), list(AUCS), python)
    return runs.results


def test_peer_tries_its_settings_on_the_first_seed(ran, tmp_path):
    raced(tmp_path)
    assert [run for run in ran if run[1] == 0] == [*((arch, 0) for arch in AUCS), *((n, 0) for n in range(len(WAYS)))]
    assert [run for run in ran if run[1] > 0] == [
        run for seed in SEEDS[1:] for run in (*((arch, seed) for arch in AUCS), (1, seed))
    ]


def test_finished_run_is_made_once_for_the_same_rows(ran, tmp_path):
    raced(tmp_path)
    first = list(ran)
    raced(tmp_path)
    assert ran == first
    text = page(raced(tmp_path, rows=2000))
    assert ran == [*first, *first]
    assert text.index("\n## 100 rows\n") < text.index("\n## 2,000 rows\n")
    assert text.count("| stca at least din -0.001 | -0.0040 | no |") == 2


def test_page_compares_sides_that_ran_every_seed(ran, tmp_path):
    text = page(raced(tmp_path))
    assert "| deepfm | 0.7510 | 0.7500, 0.7510, 0.7520 | 2, 2, 2 |" in text
    assert "| din at least FuxiCTR DIN -0.001 | +0.0005 | yes |" in text
    assert "| stca at least din -0.001 | -0.0040 | no |" in text
    (tmp_path / "alone").mkdir()
    alone = raced(tmp_path / "alone", python="")
    assert "at least FuxiCTR" not in page(alone)
