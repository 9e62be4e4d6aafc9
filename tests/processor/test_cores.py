"""Cpusets, memory nodes and limits as the system's files give them, and how many cores processes leave each other."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.cores import (
    Occupancy,
    ResourceLimits,
    available,
    free_memory,
    numa_nodes,
    on,
    parse_cpus,
    parse_cpusets,
    run_on,
    spread,
)
from freshet_serving.processor.errors import BadInput


def cores(*numbers):
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", cores(0)),
        ("0-3", cores(0, 1, 2, 3)),
        ("0,2", cores(0, 2)),
        (" 1 , 4-5 ", cores(1, 4, 5)),
        ("7-7", cores(7)),
    ],
)
def test_cpuset_is_read_as_linux_writes_it(text, wanted):
    assert parse_cpus(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "a", "3-1", "0-65536", "99999999999999999999", "0;1", "1--2", "\u00b2"]
)
def test_malformed_cpuset_is_refused(text):
    with pytest.raises(BadInput, match=r"cpus: expected cores such as 0-3,8"):
        parse_cpus(text, "cpus")


def test_each_session_has_a_cpuset():
    assert parse_cpusets("0-1;2-3") == (cores(0, 1), cores(2, 3))
    assert parse_cpusets(" ") == ()
    with pytest.raises(BadInput):
        parse_cpusets("0;")


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_core_list_round_trips(wanted):
    assert parse_cpus(",".join(map(str, wanted))) == wanted


def machine(folder, *nodes):
    for number, cpulist in enumerate(nodes):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(cpulist + "\n")
    return folder


def test_one_node_leaves_the_sessions_to_the_scheduler(tmp_path):
    nodes = numa_nodes(machine(tmp_path, "0-7"))
    assert nodes == [cores(*range(8))]
    assert spread(cores(0, 1), nodes) == ()


def test_sessions_alternate_between_two_nodes_on_the_allowed_cores(tmp_path):
    nodes = numa_nodes(machine(tmp_path, "0-3,8-11", "4-7,12-15"))
    assert spread(frozenset(range(16)), nodes) == (cores(0, 1, 2, 3, 8, 9, 10, 11), cores(4, 5, 6, 7, 12, 13, 14, 15))
    assert spread(cores(2, 3, 4), nodes) == (cores(2, 3), cores(4))
    assert spread(cores(4, 5), nodes) == ()


def test_memory_only_nodes_and_missing_topology_give_no_nodes(tmp_path):
    assert numa_nodes(machine(tmp_path, "0-1", "", "nonsense")) == [cores(0, 1)]
    assert numa_nodes(tmp_path / "absent") == []
    assert spread(cores(0, 1), []) == ()


def test_thread_and_its_children_run_on_their_assigned_cores():
    before, core = available(), cores(min(available()))
    seen = []

    def work():
        run_on(cores())
        seen.append(available())
        with on(core):
            inner = threading.Thread(target=lambda: seen.append(available()))
            inner.start()
            inner.join()
        seen.append(available())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, core, before]
    assert os.sched_getaffinity(0) == before


def test_each_process_reports_its_load_and_sees_all():
    words = np.zeros(3, np.int64)
    ours, theirs = Occupancy(4, words, 0), Occupancy(4, words, 2)
    ours.change(2)
    theirs.change(1)
    assert words.tolist() == [2, 0, 1]
    assert ours.spare == theirs.spare == 1
    ours.change(-1)
    assert theirs.spare == 2


def test_single_process_has_all_cores():
    occupancy = Occupancy(2)
    occupancy.change(1)
    assert occupancy.spare == 1


def test_heartbeat_advances_only_the_counter_of_its_process():
    beats = np.zeros(3, np.int64)
    occupancy = Occupancy(4, np.zeros(3, np.int64), 1, beats)
    for _ in range(2):
        occupancy.beat()
    assert beats.tolist() == [0, 2, 0]
    Occupancy(1).beat()


PERIOD = "100000\n"


def system(root, files):
    """A root with these files, by path."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/pod/box/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        ({"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a/b\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": PERIOD,
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": PERIOD,
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "120000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": PERIOD,
            },
            1.2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, None),
        ({"proc/self/cgroup": "nonsense\n0::\n", "sys/fs/cgroup/cpu.max": "x\n"}, None),
    ],
)
def test_cpu_quota_is_found_at_any_cgroup_level(tmp_path, files, quota):
    assert ResourceLimits.here(system(tmp_path, files)).quota == quota


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"), [(4, None, 4), (4, 1.5, 1), (4, 0.5, 1), (4, 2.0, 2), (2, 16.0, 2), (1, None, 1)]
)
def test_fractional_quota_rounds_down(affinity, quota, cores):
    assert ResourceLimits(affinity, quota).cores == cores


@pytest.mark.parametrize(
    ("files", "nbytes"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal:       2048 kB\nMemFree: 1 kB\n"}, 2 << 20),
        (
            {
                "proc/meminfo": "MemTotal:       2048 kB\n",
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "1048576\n",
            },
            1 << 20,
        ),
        (
            {
                "proc/meminfo": "MemTotal:       2048 kB\n",
                "proc/self/cgroup": "4:memory:/a/b\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
            },
            1 << 20,
        ),
    ],
)
def test_memory_limit_is_the_machine_or_cgroup_limit(tmp_path, files, nbytes):
    assert ResourceLimits.here(system(tmp_path, files)).memory_nbytes == nbytes


def test_core_count_is_explained_with_its_reason():
    assert ResourceLimits(8, 1.5).why == "1 core: affinity 8, quota 1.5"
    assert ResourceLimits(2).why == "2 cores: affinity 2, no quota"


def test_current_machine_has_resource_limits():
    here = ResourceLimits.here()
    assert here.affinity == len(available())
    assert 1 <= here.cores <= here.affinity
    assert here.memory_nbytes is None or here.memory_nbytes > 1 << 20


MEMINFO = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n"


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, 1.0),
        ({"proc/meminfo": MEMINFO}, 0.6),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/pod\n",
                "sys/fs/cgroup/pod/memory.max": "1000\n",
                "sys/fs/cgroup/pod/memory.current": "900\n",
                "sys/fs/cgroup/pod/memory.stat": "anon 700\ninactive_file 200\n",
            },
            0.3,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "900\n",
            },
            0.6,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "100\n",
                "sys/fs/cgroup/memory.current": "150\n",
            },
            0.0,
        ),
    ],
)
def test_free_memory_is_that_of_the_smallest_group(tmp_path, files, share):
    assert free_memory(system(tmp_path, files)) == pytest.approx(share)
