"""Options of groups whose cores are planned."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.core_planner.group_options import check_groups
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig


@pytest.mark.parametrize(
    ("group", "error"),
    [
        ({"p99_ms": 0.0}, "groups.a.p99_ms: expected more than 0"),
        ({"p99_ms": float("nan")}, "groups.a.p99_ms: expected more than 0"),
        ({"share": -1.0}, "groups.a.share: expected more than 0"),
        ({"min_cores": 0}, "groups.a.min_cores: expected 1 to"),
        ({"p99_ms": 5.0, "share": 1.0}, "groups.a.share: expected p99_ms or share"),
        ({"p99_ms": 5.0, "cpus": "0"}, "groups.a.cpus: cores are planned"),
        ({"p99_ms": 5.0, "sessions": 2}, "groups.a.sessions: cores are planned"),
    ],
)
def test_planned_groups_leave_cores_to_the_plan(group, error):
    with pytest.raises(BadInput, match=error):
        check_groups(SessionConfig(groups={"a": GroupConfig(["a"], **group)}))


def test_cores_of_another_group_are_not_planned_beside_a_budget():
    with pytest.raises(BadInput, match=r"groups.b.cpus: cores are planned .*remove cpus"):
        check_groups(SessionConfig(groups={"a": GroupConfig(["a"], p99_ms=5.0), "b": GroupConfig(["b"], cpus="0")}))
