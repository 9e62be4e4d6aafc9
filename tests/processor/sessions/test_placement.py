"""The core plan, as a pure function of what the user wrote and what the machine has."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.sessions.placement import plan
from freshet_serving.processor.sessions.session_options import GroupConfig, SessionConfig

CORES = frozenset(range(4))


def planned(allowed=CORES, nodes=(), **options):
    return plan(SessionConfig(**options), allowed, nodes)


def test_default_group_has_every_model_and_a_session_per_core():
    ((name, (models, options)),) = planned().items()
    assert (name, models) == ("default", ("*",))
    assert (options.sessions, options.cpus, options.threads_per_session, options.batch_window_us) == (4, (), 1, 0.0)


def test_other_groups_are_kept_off_the_cores_of_a_group():
    plans = planned(groups={"baseline": GroupConfig(["ctr"], cpus="0-1"), "rest": GroupConfig(["*"], sessions=3)})
    models, options = plans["baseline"]
    assert (models, options.sessions, options.cpus) == (("ctr",), 2, (frozenset({0, 1}),))
    models, options = plans["rest"]
    assert (models, options.sessions, options.cpus) == (("*",), 3, (frozenset({2, 3}),))
    assert "default" not in plans


def test_models_that_no_group_names_go_to_the_default_group():
    plans = planned(groups={"baseline": GroupConfig(["ctr"], cpus="3")})
    models, options = plans["default"]
    assert (models, options.cpus, options.sessions) == (("*",), (frozenset({0, 1, 2}),), 3)


def test_group_without_models_serves_the_model_of_its_name():
    assert planned(groups={"ctr": GroupConfig()})["ctr"][0] == ("ctr",)


def test_groups_override_the_options_of_the_process():
    own = GroupConfig(["a"], sessions=2, threads_per_session=3, batch_window_us=500.0, max_queue_rows=7)
    plans = planned(
        batch_window_us=100.0, max_queue_rows=9, threads_per_session=2, sessions=1,
        groups={"a": own, "b": GroupConfig(["b"])},
    )  # fmt: skip
    a, b = plans["a"][1], plans["b"][1]
    assert (a.sessions, a.threads_per_session, a.batch_window_us, a.max_queue_rows) == (2, 3, 500.0, 7)
    assert (b.sessions, b.threads_per_session, b.batch_window_us, b.max_queue_rows) == (1, 2, 100.0, 9)


def test_sessions_of_a_group_take_its_cpusets_in_turn():
    plans = planned(groups={"a": GroupConfig(["a"], cpus="1;2")})
    assert plans["a"][1].cpus == (frozenset({1}), frozenset({2}))
    assert plans["default"][1].cpus == (frozenset({0, 3}),)


def test_sessions_are_spread_over_memory_nodes():
    nodes = [frozenset({0, 1}), frozenset({2, 3})]
    assert planned(nodes=nodes)["default"][1].cpus == tuple(nodes)
    plans = planned(nodes=nodes, groups={"a": GroupConfig(["a"], cpus="2-3")})
    assert plans["default"][1].cpus == (frozenset({0, 1}),)


def test_inline_group_has_one_session_and_configured_helpers():
    assert planned(compute="inline")["default"][1].sessions == 1
    assert planned(compute="inline", sessions=8)["default"][1].sessions == 8


def test_session_count_never_exceeds_the_usable_cores():
    config = SessionConfig()
    assert plan(config, frozenset(range(8)), (), 3)["default"][1].sessions == 3
    assert plan(config, frozenset(range(2)), (), 3)["default"][1].sessions == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": {"a": GroupConfig(["m"]), "b": GroupConfig(["m"])}}, "model 'm' is in both 'a' and 'b'"),
        ({"groups": {"a": GroupConfig(cpus="0"), "b": GroupConfig(cpus="0-1")}}, "core 0 is in both 'a' and 'b'"),
        ({"groups": {"a": GroupConfig(cpus="0-3")}}, "groups.default: no core is left for this group"),
        ({"groups": {"a": GroupConfig(cpus="9")}}, "expected cores that this process may run on, got 9"),
        ({"groups": {"a": GroupConfig(cpus="x")}}, "groups.a.cpus: expected cores such as"),
        ({"groups": {"default": GroupConfig(["ctr"])}}, "expected no models"),
        ({"compute": "inline", "groups": {"a": GroupConfig()}}, "compute: expected threads with groups, got inline"),
        ({"sessions": -1}, "sessions: expected 0 .one per core. to 1024, got -1"),
        ({"sessions": 1025}, "sessions: expected 0 .one per core. to 1024, got 1025"),
        ({"threads_per_session": 0}, "threads_per_session: expected 1 to 256, got 0"),
        ({"device_stages": 65}, "device_stages: expected 0 .none. to 64, got 65"),
        ({"compute": "inline", "device_stages": 1}, "compute: expected threads with device_stages, got inline"),
        ({"compute": "gpu"}, "compute: expected one of threads, inline, got 'gpu'"),
        ({"batch_window_us": -1.0}, "batch_window_us: expected 0 to 10000000"),
        ({"max_queue_rows": 0}, "max_queue_rows: expected 1 to 2147483648, got 0"),
        (
            {"groups": {"a": GroupConfig(sessions=2000)}},
            "groups.a.sessions: expected 0 .one per core. to 1024, got 2000",
        ),
    ],
)
def test_contradictory_placement_options_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        planned(**options)


@pytest.mark.parametrize(
    ("extension", "option"), [("device_stages", "device_stages"), ("device_rows", "device_rows_mb")]
)
def test_option_of_an_extension_is_refused_without_it(extension, option, without_extensions):
    without_extensions(extension)
    assert list(planned()) == ["default"]
    for options, field in (({option: 1}, ""), ({"groups": {"ctr": GroupConfig(**{option: 1})}}, "groups.ctr.")):
        with pytest.raises(BadInput, match=f"^{field}{option} needs the extension '{extension}': "):
            planned(**options)
