"""Whole runs of the command with several processes under mpiexec, against a run of one."""

import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")
pytest.importorskip("mpi4py", reason="several processes need the mpi extra")

from freshet_serving.models.parallel.liveness import SOCKET
from freshet_serving.models.parallel.mpi_launch import mpiexec
from freshet_serving.models.parallel.mpi_run import refuse_processes, started_by_mpi, take_part
from freshet_serving.processor.errors import BadInput, Refused
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.contents import VersionContents
from freshet_serving.processor.repository.model_repository import Repository
from tests.models.parallel.clicks import write_clicks
from tests.models.parallel.starting import PATIENCE_S, ROOT, run_ranks


def train(config, *options, status=0):
    command = [sys.executable, "-m", "freshet_serving", "train", "--config", str(config), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def held(repository):
    """What the newest generation holds, and its name."""
    version = Repository(repository).version("clicks")
    change_log = ChangeLog.of(version, whole=True)
    contents = VersionContents(version, change_log, change_log.history.head)
    tables = {table.name: contents.table(table.name) for table in version.manifest.tables}
    return change_log.history.head.step, tables, contents.dense


def auc_of(done):
    return [float(auc) for auc in re.findall(r"AUC ([0-9.]+)", done.stdout)]


@pytest.mark.tensorflow
@pytest.mark.long
@pytest.mark.parametrize(
    ("processes", "optimizer"),
    [(2, "adagrad"), *(pytest.param(*case, marks=pytest.mark.campaign) for case in [(3, "adam"), (4, "ftrl")])],
)
def test_run_of_several_processes_publishes_like_a_single_one(tmp_path, processes, optimizer):
    one = train(write_clicks(tmp_path, "one", optimizer))
    many = train(write_clicks(tmp_path, "many", optimizer), "--processes", str(processes))
    assert auc_of(many) == pytest.approx(auc_of(one), abs=1e-4)
    step, tables, dense = held(tmp_path / "one")
    other_step, other_tables, other_dense = held(tmp_path / "many")
    assert step == other_step == 3
    for name, (keys, rows) in tables.items():
        assert np.array_equal(keys, other_tables[name][0])
        np.testing.assert_allclose(rows, other_tables[name][1], atol=1e-4)
    for name, weights in dense.items():
        np.testing.assert_allclose(weights, other_dense[name], atol=1e-4)


@pytest.mark.tensorflow
@pytest.mark.long
def test_mistake_is_reported_in_one_line_by_one_process(tmp_path):
    config = write_clicks(tmp_path)
    done = train(config, "--processes", "3", "--set", "train.holdout=7", status=2)
    assert done.stderr.count("train.holdout") == 1
    assert "Traceback" not in done.stdout + done.stderr
    (tmp_path / "clicks.csv").write_text("user,item,price,label\n" + "1,2,3,0\n" * 250 + "1,2,x,0\n")
    done = train(config, "--processes", "2", "--set", "publish.full_rows=251", status=2)
    assert done.stderr.count("price") == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("error", "status"), [(Refused("version 2 was refused by the gate"), 3), (BadInput("data"), 2), (OSError(), 1)]
)
def test_error_of_rank_0_is_announced_with_its_own_status(monkeypatch, error, status):
    announced, told = [], []
    ranks = SimpleNamespace(rank=0, size=2, channel=lambda: None, share_cores=lambda: None)
    client, lead = SimpleNamespace(failing=announced.append), SimpleNamespace(close=told.append)
    monkeypatch.setattr("freshet_serving.models.parallel.mpi_ranks.MpiRanks", lambda: ranks)
    monkeypatch.setattr("freshet_serving.models.parallel.mpi_run.LivenessClient", lambda rank: client)
    monkeypatch.setattr("freshet_serving.models.parallel.rank_loop.LeadTrainerFactory", lambda *_: lead)

    def train(make_trainer):
        raise error

    with pytest.raises(type(error)):
        take_part(train)
    assert announced == [status]
    assert told == [str(error) or type(error).__name__]


def test_mpi_launch_is_recognised(monkeypatch):
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
        assert not started_by_mpi()
        monkeypatch.setenv(name, "1")
        assert not started_by_mpi()
        monkeypatch.setenv(name, "3")
        assert started_by_mpi()
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("size", "rank"), [("PMI_SIZE", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")])
def test_processes_option_under_foreign_mpirun_is_refused_by_rank_0(monkeypatch, size, rank):
    monkeypatch.delenv(SOCKET, raising=False)
    refuse_processes(4)
    monkeypatch.setenv(size, "2")
    monkeypatch.setenv(rank, "0")
    refuse_processes(1)
    with pytest.raises(BadInput, match="--processes: not allowed under mpirun, which started 2, got 4"):
        refuse_processes(4)
    monkeypatch.setenv(rank, "1")
    with pytest.raises(SystemExit) as ended:
        refuse_processes(4)
    assert ended.value.code == 0
    # What our own launcher has started was told so by its own command line.
    monkeypatch.setenv(SOCKET, "roll")
    refuse_processes(4)


@pytest.mark.long
def test_command_under_mpirun_is_refused_in_one_line(tmp_path):
    options = ["-m", "freshet_serving", "train", "--config", "none.toml", "--processes", "4"]
    command = [mpiexec(), "-n", "2", sys.executable, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr.count("freshet: --processes: not allowed under mpirun, which started 2, got 4\n") == 1


def test_single_process_trains_normally():
    code = "from freshet_serving.models.parallel.mpi_run import take_part\ntake_part(lambda make: print('alone', make))"
    status, out = run_ranks(1, code)
    assert (status, out.strip()) == (0, "alone None")
