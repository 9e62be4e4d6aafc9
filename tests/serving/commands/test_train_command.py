"""`freshet train` says what is wrong in a file before it starts anything."""

import gc
import json
import socket
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshet_serving.models.parallel import mpi_launch
from freshet_serving.models.runs.run_lock import LOCK, trainer_lock
from freshet_serving.models.training import repeated_run
from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.serving.commands import train_command
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


def test_file_is_refused_before_processes_start(tmp_path, monkeypatch):
    monkeypatch.setattr(mpi_launch, "launch", lambda *_: pytest.fail("processes were started"))
    (tmp_path / "train.toml").write_text(FILE)
    with pytest.raises(BadInput, match=r"--processes: expected 1 for a next-item network, .* got '2'"):
        run("train", "--config", str(tmp_path / "train.toml"), "--processes", "2")


FOLLOWED = """
[model]
name = "shop"
arch = "din"
[data]
path = "events"
label = "label"
time = "ts"
follow = true
[features]
user = { kind = "id", side = "user" }
item = { kind = "id", side = "item" }
price = { kind = "float", side = "item" }
[sequences.history]
columns = { item = "item" }
tables = { item = "item" }
from_events = "user"
store = "main"
[entities.item]
key = "item"
path = "items.parquet"
columns = ["price"]
[publish]
full_rows = 2
"""


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """A training file that follows events and items, beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.toml").write_text(FOLLOWED)
    (tmp_path / "events").mkdir()
    events = {"user": [1, 2], "item": [1, 2], "label": [0.0, 1.0], "ts": [1.7e9, 1.7e9 + 1]}
    pq.write_table(pa.table(events), tmp_path / "events" / "0.parquet")
    pq.write_table(pa.table({"item": [1, 2], "price": [1.0, 2.0]}), tmp_path / "items.parquet")
    return tmp_path / "train.toml"


def test_store_without_an_address_is_refused_before_anything_is_read(followed, monkeypatch):
    monkeypatch.setitem(sys.modules, "freshet_serving.models.training.loop", None)
    with pytest.raises(BadInput, match=r"sequences\.history\.store: expected the address of 'main', got none"):
        run("train", "--config", str(followed))
    assert not (followed.parent / "repository").exists()


def test_second_trainer_touches_neither_store_nor_state(followed):
    checkpoints = followed.parent / "repository" / ".checkpoints" / "shop"
    with socket.create_server(("127.0.0.1", 0)) as store, trainer_lock(checkpoints, "shop"):
        store.settimeout(0)
        with pytest.raises(Conflict, match="another trainer of 'shop' is running"):
            run(
                "train", "--config", str(followed), "--online-store", f"main=redis://127.0.0.1:{store.getsockname()[1]}"
            )
        with pytest.raises(BlockingIOError):
            store.accept()
        assert [path.name for path in checkpoints.iterdir()] == [LOCK]


def test_run_is_not_repeated_over_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(repeated_run, "RepeatedRun", lambda folder: SimpleNamespace(full_rows=5))
    (tmp_path / "train.toml").write_text(FILE + f"[publish]\nrepository = {json.dumps(str(tmp_path))}\n")
    repeat = "train", "--config", str(tmp_path / "train.toml"), "--repeat", str(tmp_path / ".checkpoints" / "next")
    with pytest.raises(BadInput, match="--repeat: expected checkpoints of another repository"):
        run(*repeat)
    with pytest.raises(BadInput, match="--repeat: not allowed with --follow"):
        run(*repeat, "--follow")


def failed_import():
    with train_command._importing():
        assert not gc.isenabled()
        raise ImportError


def test_imported_objects_are_never_looked_through_for_garbage():
    before = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError):
            failed_import()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
