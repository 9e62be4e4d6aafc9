"""The request that `make -C loadtest bench-sequences` times: its rows and its graph; ratios; and its page."""

from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="its models are published")

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from loadtest.bench import bench_sequences as bench

pytestmark = pytest.mark.tensorflow


@pytest.mark.long
@pytest.mark.parametrize("network", ["stca", pytest.param("hstu", marks=pytest.mark.campaign)])
def test_engine_and_expanded_graph_score_the_request_alike(network, tmp_path):
    request = bench.published(tmp_path, network, 6)
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        got = processor.process(PredictRequest(network, request.columns)).outputs["score"]
    assert got.shape == (bench.CANDIDATES, 1)
    np.testing.assert_allclose(bench.expanded_run(request, 6)(), got, atol=1e-5)
    assert request.flops > bench.CANDIDATES * bench.DIM**2


def test_din_is_scored_alike_with_and_without_rules():
    figures = bench.measure_din("4", 6, 2)
    assert (figures.attention, figures.length) == ("4", 6)
    assert len(figures.ratio) == 2


def test_ratios_are_the_peers_times_over_ours_by_round():
    assert bench.ratios([2.0, 4.0, 6.0, 8.0], [1.0, 1.0, 1.0, 2.0]) == [pytest.approx(2.5), 4.0]


def test_page_shows_what_was_measured():
    figures = [
        bench.SequenceFigures("stca", 256, 700.0, 0.25, 1100.0, [1.5, 1.6], 70_000.0, [90.0, 100.0]),
        bench.SequenceFigures("hstu", 1024, 14_000.0, 0.2, 0.0, [], 0.0, []),
    ]
    results = {
        "machine": {"cores": 2, "cpu": "a CPU"},
        "origin": {"date": "2026-01-01", "command": "make -C loadtest bench-sequences"},
        "torch": "PyTorch was not measured.",
        "figures": [asdict(f) for f in figures],
        "din": [asdict(bench.DinFigures("80,40", 256, 15_000.0, 32_000.0, [2.0, 2.1]))],
    }
    found = bench.page(results)
    assert "| stca | 256 | 700 | 25% | 1,100 | **1.60** (1.50) | 70,000 | **100.00** (90.00) |" in found
    assert "| hstu | 1,024 | 14,000 | 20% |  |  |  |  |" in found
    assert "PyTorch was not measured." in found
    assert "| 80,40 | 256 | 15,000 | 32,000 | **2.10** (2.00) |" in found
