"""How many rows prove that two forms of a graph compute the same."""

import pytest

from freshet_serving.compiler.passes import flops
from freshet_serving.compiler.passes.flops import LEAST_PROOF_ROWS, PROOF_FLOPS, proof_rows


@pytest.mark.parametrize(
    ("row_flops", "rows"),
    [(0, 64), (1000, 64), (PROOF_FLOPS // 64, 64), (PROOF_FLOPS // 10, 10), (PROOF_FLOPS, LEAST_PROOF_ROWS)],
)
def test_graphs_of_much_work_are_proven_on_fewer_rows(row_flops, rows, monkeypatch):
    monkeypatch.setattr(flops, "dense_flops", lambda dense: row_flops)
    assert proof_rows("dense", 64) == rows
