"""Choices of packages and of loaded versions, as people and programs are told of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.package import ExecutableEntry
from freshet_serving.processor.running.choices import Choice, choice_lines, package_choices, split_choices
from freshet_serving.processor.running.split_choice import SplitCost
from tests.processor.running.graphs import manifest


def entry(subgraph="whole", bucket=64, cost_us=0.0, backend="onnxruntime", precision="float32", target="cpu", **more):
    return ExecutableEntry(
        backend, target, bucket, "file", "", [], precision, cost_us=cost_us, subgraph=subgraph, measured_on="box"
        if cost_us else "", **more,
    )  # fmt: skip


def measured(variant, cost_us, bucket=64):
    return {"variant": variant, "bucket": bucket, "cost_us": cost_us, "error": 0.0}


def packaged(*entries, user=False, **note):
    return replace(manifest(user), executables=list(entries), notes={"compile": note} if note else {})


def named(choices, name):
    return [choice for choice in choices if choice.name == name]


def test_fastest_executable_is_told_with_what_the_others_cost():
    made = packaged(
        entry("score", 64, 10.0, "openvino"),
        measured=[measured("openvino", 10.0), measured("xla", 12.0), measured("onnxruntime", 15.0)],
        precision="float32",
    )
    (choice,) = named(package_choices(made), "executable of score")
    assert (choice.rows, choice.chosen) == (64, "openvino")
    assert choice.cost_us == {"openvino": 10.0, "xla": 12.0, "onnxruntime": 15.0}
    assert choice.why == "the fastest on box"
    assert "freshet compile" in choice.override


def test_what_nobody_measured_has_no_cost():
    choices = package_choices(packaged(entry("score", 1), entry("score", 64)))
    assert {choice.chosen for choice in named(choices, "executable of score")} == {"onnxruntime"}
    assert not any(choice.measured for choice in choices)
    assert choice_lines(choices)[0].startswith(
        "executable of score of 1, 64 rows: onnxruntime not measured (the only one compiled; otherwise: "
    )


def test_precision_is_told_with_its_bound_and_the_cost_of_float32():
    lower = entry("score", 64, 10.0, "openvino", "bfloat16", max_error=0.01)
    made = packaged(
        lower, entry("score", 64, 20.0),
        measured=[measured("openvino bfloat16", 10.0), measured("onnxruntime", 20.0), measured("openvino", 30.0)],
        precision="auto",
    )  # fmt: skip
    (choice,) = named(package_choices(made), "precision")
    assert (choice.chosen, choice.cost_us) == ("bfloat16", {"bfloat16": 10.0, "float32": 20.0})
    assert choice.why == "at most 0.01 off float32's scores; compiled with --precision auto"


def test_device_that_was_compiled_for_ahead_is_preferred_unmeasured():
    made = packaged(entry("score", 64, backend="xla", target="cuda-sm_90"), entry("score", 64, 20.0))
    choices = package_choices(made)
    (device,) = named(choices, "device")
    assert (device.chosen, device.cost_us) == ("cuda-sm_90", {"cuda-sm_90": None, "cpu": 20.0})
    (executable,) = named(choices, "executable of score")
    assert executable.chosen == "xla cuda"
    assert "xla cuda not measured; others: onnxruntime 20 us" in choice_lines([executable])[0]


def test_slower_executable_of_a_named_precision_says_so():
    made = packaged(
        entry("score", 64, 20.0),
        measured=[measured("onnxruntime", 20.0), measured("openvino bfloat16", 10.0)],
        precision="float32",
    )
    (choice,) = named(package_choices(made), "executable of score")
    assert choice.why == "the fastest in its precision"


def test_requests_are_predicted_whole_or_divided_by_stored_costs():
    made = packaged(entry("whole", 64, 100.0), entry("user", 1, 10.0), entry("score", 64, 60.0), user=True)
    choices = named(package_choices(made), "request")
    assert [choice.rows for choice in choices] == [1, 2, 4, 8, 16, 32, 64]
    assert (choices[0].chosen, choices[-1].chosen) == ("whole", "divided")
    assert choices[-1].cost_us == {"whole": 100.0, "divided": 70.0}


def test_requests_without_stored_costs_are_timed_at_load():
    made = packaged(entry("whole", 64, 100.0), entry("user", 1), entry("score", 64, 60.0), user=True)
    lines = choice_lines(named(package_choices(made), "request"))
    assert len(lines) == 1
    assert "timed at load; others: whole not measured, divided not measured" in lines[0]


def test_loaded_version_tells_what_requests_took():
    first, second = split_choices([SplitCost(0, 64, True, 20.0, 10.0, 0), SplitCost(50, 128, False, 20.0, 30.0, 2)])
    assert (first.name, first.rows, first.chosen, first.why) == ("request", 64, "divided", "timed at load")
    assert first.cost_us == {"whole": 20.0, "divided": 10.0}
    assert (second.name, second.chosen) == ("request with at most 50 events", "whole")
    assert second.why == "timed at load, compared by requests 2 times"


def test_lines_repeat_no_way_to_choose_otherwise():
    choices = [Choice("a", rows, "x", {"x": 1.0, "y": 2000.0}, "faster", "--option") for rows in (1, 1024)]
    assert choice_lines(choices) == [
        "a of 1 rows: x 1 us; others: y 2,000 us (faster; otherwise: --option)",
        "a of 1,024 rows: x 1 us; others: y 2,000 us (faster)",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("onnxruntime"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["measured", "parts", "variant", "bucket", "cost_us", "precision"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_notes_may_hold_anything(note):
    made = replace(packaged(entry("score", 64, 5.0)), notes={"compile": note})
    assert choice_lines(package_choices(made))


@pytest.mark.parametrize("cost_us", [True, -1.0, float("nan"), float("inf"), "12"])
def test_costs_that_are_none_are_left_out(cost_us):
    made = packaged(entry("score", 64, 5.0), measured=[measured("xla", cost_us)])
    (choice,) = named(package_choices(made), "executable of score")
    assert choice.cost_us == {"onnxruntime": 5.0}


def test_package_without_executables_chooses_nothing():
    assert package_choices(packaged()) == []
    assert choice_lines([]) == []
