import os

import pytest

from loadtest.live.usage import Usage

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc, pid, parent, cpu_s, kb):
    """A process as /proc shows it."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{pid} (a b) S {parent} 1 1 0 -1 4 0 0 0 0 {round(cpu_s * TICKS)} 0 7 7 20 0 1 0 99")
    (folder / "smaps_rollup").write_text(f"0-f rollup\nPss: {kb} kB\n")


def test_cores_are_what_all_processes_took_between_two_samples_and_memory_is_their_sum(tmp_path):
    usage = Usage(10, tmp_path)
    process(tmp_path, 10, 1, 5.0, 1024)
    process(tmp_path, 11, 10, 1.0, 2048)
    usage.take(100.0)
    process(tmp_path, 10, 1, 6.0, 1024)
    process(tmp_path, 11, 10, 2.5, 4096)
    usage.take(102.0)

    assert usage.document() == [{"at_s": 102.0, "cores": 1.25, "nbytes": 5 << 20, "processes": 2}]


def test_a_worker_that_is_replaced_takes_no_time_back(tmp_path):
    usage = Usage(10, tmp_path)
    process(tmp_path, 10, 1, 5.0, 1024)
    process(tmp_path, 11, 10, 50.0, 1024)
    usage.take(100.0)
    for name in ("stat", "smaps_rollup"):
        (tmp_path / "11" / name).unlink()
    (tmp_path / "11").rmdir()
    process(tmp_path, 12, 10, 0.5, 1024)
    usage.take(101.0)

    (sample,) = usage.samples
    assert sample.cores == pytest.approx(0.5)
    assert sample.processes == 2


def test_a_server_that_has_gone_takes_nothing(tmp_path):
    usage = Usage(10, tmp_path)
    process(tmp_path, 10, 1, 5.0, 1024)
    usage.take(100.0)
    for name in ("stat", "smaps_rollup"):
        (tmp_path / "10" / name).unlink()
    (tmp_path / "10").rmdir()
    usage.take(101.0)

    assert [(s.cores, s.nbytes, s.processes) for s in usage.samples] == [(0.0, 0, 0)]


def test_a_system_without_such_figures_has_no_samples(tmp_path):
    usage = Usage(10, tmp_path / "none")
    usage.take(1.0)
    usage.take(2.0)

    assert usage.samples == []
