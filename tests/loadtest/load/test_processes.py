import os
import subprocess
import sys
import time

from loadtest.load.processes import cpu_s, pss_nbytes, tree


def test_process_tree_contains_all_descendants(tmp_path):
    for pid, parent, name in ((1, 0, "init"), (10, 1, "a (b) c"), (11, 10, "x"), (12, 11, "y"), (20, 1, "z")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1")
    (tmp_path / "13").mkdir()
    (tmp_path / "self").mkdir()
    assert tree(10, tmp_path) == [10, 11, 12]


def test_memory_is_summed_and_an_ended_process_counts_nothing(tmp_path):
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "smaps_rollup").write_text("0-f rollup\nRss: 900 kB\nPss: 300 kB\nPss_Anon: 200 kB\n")
    assert pss_nbytes([10, 11], tmp_path) == 300 * 1024


def test_cpu_time_is_summed_and_an_ended_process_counts_nothing(tmp_path):
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "stat").write_text("10 (a (b) c) S 1 1 1 0 -1 4 0 0 0 0 150 50 7 7 20 0 1 0 99")
    assert cpu_s([10, 11], tmp_path) == 200 / os.sysconf("SC_CLK_TCK")


def test_real_child_process_is_found():
    # Of what an interpreter maps many share a page on a busy machine: what it writes to is its own.
    code = "own = bytearray(b'x') * (4 << 20); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert child.pid in tree(os.getpid())
        assert pss_nbytes([child.pid]) > 1 << 20
    finally:
        child.communicate(b"\n")


def test_processor_time_counts_children():
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}]); input()"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as process:
        until_s = time.monotonic() + 30
        while cpu_s(tree(process.pid), ended=True) < 0.3 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert cpu_s(tree(process.pid), ended=True) >= 0.3
        process.stdin.close()
