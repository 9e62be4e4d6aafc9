"""Groups of one process, counted for a plan and placed by it."""

import json

from freshet_serving.processor.cores import available
from freshet_serving.processor.extensions.core_planner.group_counts import SIZES, CountedGroups, mean_costs, work_of
from tests.processor.sessions.fakes import Answers, FakeReplica, group


def test_counts_and_costs_survive_json():
    with group(sessions=1) as one:
        own, answers, replica = CountedGroups({"one": one}), Answers(), FakeReplica()
        assert own.costs() == {}
        for number in range(5):
            one.enqueue(answers.work(replica, number, [number, number]))
        answers.wait(5)
        counts, costs = json.loads(json.dumps([own.counts(), own.costs()]))
        assert (work_of(counts["one"]).requests, work_of(counts["one"]).rows) == (5, 10)
        assert sum(counts["one"]["responses"]) == 5
        assert costs["one"] == [replica.costs.batch_s(rows) for rows in SIZES]


def test_group_moves_only_where_it_is_not_yet():
    cores = sorted(available())
    with group(sessions=1) as one:
        own = CountedGroups({"one": one})
        own.place({"one": [2, cores[:1]]})
        assert (len(one), one.options.cpus) == (2, (frozenset(cores[:1]),))
        options = one.options
        own.place({"one": [2, cores[:1]]})
        assert one.options is options


def test_costs_are_averaged_over_processes_that_have_any():
    assert mean_costs([{"one": [1.0, 2.0]}, {}, {"one": [3.0, 4.0], "other": [5.0, 5.0]}]) == {
        "one": [2.0, 3.0],
        "other": [5.0, 5.0],
    }
    assert mean_costs([]) == {}
