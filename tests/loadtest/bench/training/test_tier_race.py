"""The race of tables larger than memory, with small ones."""

import argparse
import io

import pytest
from rich.console import Console

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.embedding import tiered_rows
from loadtest.bench.training import tier_race

pytestmark = pytest.mark.tensorflow


@pytest.mark.long
def test_both_sides_take_turns_and_lookups_are_timed_separately(tmp_path, monkeypatch):
    monkeypatch.setattr(tiered_rows, "LEAST_ROWS", 64)
    monkeypatch.setattr(tiered_rows, "HOT_SHARE", 1e-3)
    asked = argparse.Namespace(
        table_rows=2000, batch_rows=64, share=0.25, cache="lru", rounds=2, steps=5, scratch=tmp_path, out=tmp_path
    )
    result = tier_race.race(asked, Console(file=io.StringIO()))
    assert {side: len(turns) for side, turns in result["turns"].items()} == {"tiers": 2, "memory": 2}
    lookups = result["lookups"]
    assert len(lookups["memory"]) == len(lookups["tiers"]) + len(lookups["compacting"]) == 10
    assert result["rows_in_memory"] + result["rows_on_disk"] == 8 * 2000
    assert result["rows_on_disk"] > 4 * 2000
    result["turns"] = {"tiers": [0.2, 0.4], "memory": [0.1, 0.3]}
    assert "**Speed beside all rows in memory: 0.62** (0.50 to 0.75), 2 rounds" in tier_race.page(result)
    assert tiered_rows.TieredRows.compact_log.__name__ == "compact_log"
