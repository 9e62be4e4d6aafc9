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


def test_cpu_use_and_memory_are_summed_over_processes(tmp_path):
    usage = Usage(10, tmp_path)
    process(tmp_path, 10, 1, 5.0, 1024)
    process(tmp_path, 11, 10, 1.0, 2048)
    usage.take(100.0)
    process(tmp_path, 10, 1, 6.0, 1024)
    process(tmp_path, 11, 10, 2.5, 4096)
    usage.take(102.0)

    assert usage.samples == [{"at_s": 102.0, "cores": 1.25, "nbytes": 5 << 20, "processes": 2}]


def test_replaced_worker_does_not_reduce_cpu_time(tmp_path):
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
    assert sample["cores"] == pytest.approx(0.5)
    assert sample["processes"] == 2


def test_missing_server_counts_nothing(tmp_path):
    usage = Usage(10, tmp_path)
    process(tmp_path, 10, 1, 5.0, 1024)
    usage.take(100.0)
    for name in ("stat", "smaps_rollup"):
        (tmp_path / "10" / name).unlink()
    (tmp_path / "10").rmdir()
    usage.take(101.0)

    assert [(s["cores"], s["nbytes"], s["processes"]) for s in usage.samples] == [(0.0, 0, 0)]


def test_system_without_process_figures_has_no_samples(tmp_path):
    usage = Usage(10, tmp_path / "none")
    usage.take(1.0)
    usage.take(2.0)

    assert usage.samples == []
