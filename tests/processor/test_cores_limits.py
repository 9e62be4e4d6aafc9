import pytest

from freshet_serving.processor.cores import ResourceLimits, available, free_memory

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
