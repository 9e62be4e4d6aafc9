"""`freshet train` says what is wrong in a file before it starts anything."""

import pytest

from freshet_serving.models.parallel import mpi_launch
from freshet_serving.processor.errors import BadInput
from tests.serving.commands.running import run

FILE = """
[model]
name = "next"
arch = "sasrec_next"
[data]
path = "log.csv"
label = "label"
time = "ts"
[features]
user_id = { kind = "id", side = "user" }
item_id = { kind = "id", side = "item" }
[sequences.history]
columns = { item = "item_id" }
tables = { item = "item_id" }
from_events = "user_id"
ties = "file"
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "--processes: expected 1 for a next-item network, which is trained by one process, got '2'"),
        ("[guard]\nsigmas = 3.0\n", "guard.sigmas: expected nothing for sasrec_next"),
    ],
)
def test_file_is_refused_before_processes_start(more, message, tmp_path, monkeypatch):
    monkeypatch.setattr(mpi_launch, "launch", lambda *_: pytest.fail("processes were started"))
    (tmp_path / "train.toml").write_text(FILE + more)
    with pytest.raises(BadInput) as refused:
        run("train", "--config", str(tmp_path / "train.toml"), "--processes", "2")
    assert str(refused.value).startswith(message)
