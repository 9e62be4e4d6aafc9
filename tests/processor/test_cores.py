"""Cpusets as text and memory nodes as the system's files give them."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.cores import available, numa_nodes, on, parse_cpus, parse_cpusets, run_on, spread
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
