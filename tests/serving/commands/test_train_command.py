"""`freshet train` says what is wrong in a file before it starts anything."""

import json
from types import SimpleNamespace

import pytest

from freshet_serving.models.parallel import mpi_launch
from freshet_serving.models.training import repeated_run
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


def test_run_is_not_repeated_over_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(repeated_run, "RepeatedRun", lambda folder: SimpleNamespace(full_rows=5))
    (tmp_path / "train.toml").write_text(FILE + f"[publish]\nrepository = {json.dumps(str(tmp_path))}\n")
    repeat = "train", "--config", str(tmp_path / "train.toml"), "--repeat", str(tmp_path / ".checkpoints" / "next")
    with pytest.raises(BadInput, match="--repeat: expected checkpoints of another repository"):
        run(*repeat)
    with pytest.raises(BadInput, match="--repeat: not allowed with --follow"):
        run(*repeat, "--follow")
