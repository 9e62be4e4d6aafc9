"""`freshet train` again over a log that has grown: what it reads, and what the guard holds of it."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.serving.commands.cli import main

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.long]

FILE = """
[model]
name = "shop"
arch = "din"
[data]
path = "log"
format = "parquet"
label = "label"
time = "time"
[features.user]
kind = "id"
side = "user"
[features.item]
kind = "id"
[sequences.h]
columns = { item = "item" }
tables = { item = "item" }
from_events = "user"
where = "label"
max_length = 8
[train]
batch_rows = 256
learning_rate = 0.1
[publish]
repository = "repository"
full_rows = 6000
delta_rows = 1000
"""


class Shop:
    def __init__(self, folder):
        self.folder, self.random, self.rows = folder, np.random.default_rng(2), 0
        (folder / "log").mkdir()
        (folder / "train.toml").write_text(FILE)

    def grow(self, rows, label=None):
        user, item = self.random.integers(0, 60, rows), self.random.integers(0, 40, rows)
        chance = 1 / (1 + np.exp(-2 * np.sin(user * 2.4) - 2 * np.cos(item * 1.7)))
        labels = (self.random.random(rows) < chance).astype(np.float64) if label is None else np.full(rows, label)
        table = pa.table({"user": user, "item": item, "label": labels, "time": 1.7e9 + self.rows + np.arange(rows)})
        pq.write_table(table, self.folder / "log" / f"{self.rows:09}.parquet")
        self.rows += rows


def exit_status():
    """Return the command's exit status."""
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_a_run_whose_deltas_are_held_ends_with_3(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["freshet", "train", "--config", "train.toml"])
    shop = Shop(tmp_path)
    shop.grow(12_000)
    assert exit_status() == 0
    shop.grow(1000)
    assert exit_status() == 0
    shop.grow(1000, label=0.0)
    assert exit_status() == 3
    said = capsys.readouterr().err
    assert "0 of 1,000 labels are above 0: expected about" in said
    assert "freshet delta release shop" in said
    assert "Traceback" not in said
    # Normal rows after it release what is held, as those of a stream do.
    shop.grow(3000)
    assert exit_status() == 0
