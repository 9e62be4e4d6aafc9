import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

import pyarrow.parquet as pq

from freshet_serving.models.training.checkpoint import map_newest
from freshet_serving.models.training.loop import TrainingRun
from tests.models.training.streams import MixedSource, make_config

pytestmark = pytest.mark.tensorflow


@pytest.mark.long
def test_run_exports_its_tables_as_parquet_next_to_checkpoints(tmp_path, quick):
    training = TrainingRun(make_config(tmp_path), MixedSource(584))
    training.run()
    folder = tmp_path / ".checkpoints" / "mixed"
    rows = pq.read_table(folder / "rows.parquet").to_pydict()
    held = {name: table.export() for name, table in training.trainer.tables.items()}
    assert len(rows["id"]) == sum(len(e.keys) for e in held.values())
    user = {i: f for t, i, f in zip(rows["table"], rows["id"], rows["frequency"]) if t == "user"}
    assert user == dict(zip(held["user"].keys.tolist(), held["user"].counts.tolist()))
    assert {line["table"] for line in pq.read_table(folder / "tables.parquet").to_pylist()} == set(held)
    found = map_newest(folder)
    assert found.steps == training.trainer.steps
    again = TrainingRun(make_config(tmp_path), MixedSource(584))
    assert again.state.position == 584
