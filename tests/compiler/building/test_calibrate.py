"""What is measured is right, what is chosen is the fastest of that, and a lower precision keeps within its bound."""

from dataclasses import replace

import numpy as np
import pytest

import freshet_serving.compiler.building.calibrate as calibrating
import freshet_serving.compiler.building.compile as compiling
from freshet_serving.compiler.backends.base import Variant
from freshet_serving.compiler.building.calibrate import Calibration, LabelledRows, Tolerance, calibrate, other_weights
from freshet_serving.compiler.building.compile import build, largest_error
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.machine import this_machine
from freshet_serving.processor.package.manifest_entries import ExecutableEntry
from tests.compiler.building.test_compile import make_graph, rows

SOURCE = "0" * 64


@pytest.fixture(scope="module")
def graph():
    return make_graph(hidden=(8, 4))


@pytest.fixture(scope="module")
def built(graph, tmp_path_factory):
    """A version's folder, and executables of ONNX Runtime in it."""
    folder = tmp_path_factory.mktemp("version")
    lowered = compiling.lower(graph, Variant("onnxruntime"))
    return folder, [build(lowered, bucket, folder) for bucket in (1, 8)]


class Off:
    """Programs whose scores are off by so much, for entries of some precision."""

    def __init__(self, monkeypatch, by, precision="bfloat16", flipped=0.0):
        honest = calibrating.load

        def load(graph, folder, entries):
            opened = honest(graph, folder, [replace(e, precision="float32") for e in entries])
            if entries[0].precision == precision:
                opened.programs = [Shifted(opened.programs[0], by, flipped)]
            return opened

        monkeypatch.setattr(calibrating, "load", load)


class Shifted:
    def __init__(self, program, by, flipped):
        self.program, self.by, self.flipped, self.calls = program, by, flipped, 0

    def with_weights(self, weights):
        self.calls += 1
        by = self.by if self.calls == 1 else self.by + self.flipped
        return {b: ShiftedExecutable(e, by) for b, e in self.program.with_weights(weights).items()}


class ShiftedExecutable:
    def __init__(self, executable, by):
        self.executable, self.bucket, self.by = executable, executable.bucket, by

    def bind_buffers(self, inputs, outputs):
        run = self.executable.bind_buffers(inputs, outputs)

        def shifted():
            run()
            outputs["score"] += np.float32(self.by)

        return shifted


def given(graph, n):
    return {"x": rows(n, graph.width)}


def low(entries):
    return [replace(e, precision="bfloat16") for e in entries]


def test_every_executable_has_a_cost_an_error_and_the_machine(graph, built):
    folder, entries = built
    told = []
    found = calibrate(graph, folder, entries, given(graph, 16), advance=lambda: told.append(1))
    assert [e.bucket for e in found.measured] == [1, 8]
    for entry in found.measured:
        assert entry.cost_us > 0
        assert entry.error < 1e-5
        assert entry.measured_on == this_machine().name
    assert found.flip_ms["onnxruntime"] > 0
    assert found.refused == []
    assert found.chosen() == found.measured
    assert len(told) == 2


def test_calibration_rows_are_repeated_up_to_the_largest_bucket(graph, built):
    folder, entries = built
    assert len(calibrate(graph, folder, entries, given(graph, 1)).measured) == 2


@pytest.mark.parametrize(("by", "kept"), [(1e-3, True), (3e-3, False)])
def test_lower_precision_is_kept_only_within_the_bound(by, kept, graph, built, monkeypatch):
    folder, entries = built
    Off(monkeypatch, by)
    found = calibrate(graph, folder, [*entries, *low(entries)], given(graph, 8), Tolerance(2e-3))
    assert {e.variant for e in found.measured} == {"onnxruntime"} | ({"onnxruntime bfloat16"} if kept else set())
    assert bool(found.refused) != kept
    if not kept:
        assert found.refused[0] == "onnxruntime bfloat16 b1: differs from TensorFlow by 0.003, expected at most 0.002"


def test_float32_executable_with_wrong_scores_is_refused(graph, built, monkeypatch):
    folder, entries = built
    Off(monkeypatch, 0.5, "float32")
    with pytest.raises(
        BadInput,
        match=r"bucket 1: no backend gives the same results as TensorFlow: onnxruntime b1: differs from TensorFlow by",
    ):
        calibrate(graph, folder, entries, given(graph, 8), Tolerance(10.0))


def test_executable_correct_only_for_its_first_weights_is_refused(graph, built, monkeypatch):
    folder, entries = built
    Off(monkeypatch, 0.0, flipped=0.1)
    found = calibrate(graph, folder, [*entries, *low(entries)], given(graph, 8))
    assert {e.precision for e in found.measured} == {"float32"}
    assert "with new dense weights" in found.refused[0]


def test_lower_precision_that_reduces_auc_is_refused_with_labels(graph, built, monkeypatch):
    folder, entries = built
    Off(monkeypatch, 1e-3)
    inputs = given(graph, 64)
    scores = graph.run(inputs)["score"][:, 0]
    labelled = LabelledRows(inputs, (scores > np.median(scores)).astype(np.float32))
    found = calibrate(graph, folder, [*entries, *low(entries)], inputs, labelled=labelled)
    assert found.auc == {"onnxruntime": 0.0, "onnxruntime bfloat16": 0.0}
    monkeypatch.setattr(calibrating, "auc", Falling())
    refused = calibrate(graph, folder, [*entries, *low(entries)], inputs, labelled=labelled).refused
    assert refused == ["onnxruntime bfloat16: the AUC changes by -0.1, expected at most 0.0001"]


class Falling:
    """An AUC that falls by a tenth for the second variant."""

    def __init__(self):
        self.values = iter([0.9, 0.9, 0.8, 0.9])

    def __call__(self, scores, labels):
        return next(self.values)


def test_unloadable_executable_is_refused_and_the_rest_measured(graph, built):
    folder, entries = built
    foreign = [replace(e, backend="xla", library="jaxlib 0.0.1", features=["sve9"]) for e in entries]
    found = calibrate(graph, folder, [*entries, *foreign], given(graph, 8))
    assert {e.backend for e in found.measured} == {"onnxruntime"}
    assert found.refused[0].startswith("xla: foreign: compiled for a processor with sve9")


def entry(backend, bucket, cost_us, features=()):
    return ExecutableEntry(backend, "t", bucket, "f", SOURCE, [], features=list(features), cost_us=cost_us)


def test_fastest_executable_is_chosen_with_a_portable_fallback():
    portable, slower = entry("onnxruntime", 1, 30.0), entry("tensorflow", 1, 90.0)
    code, other = entry("xla", 1, 20.0, ["avx2"]), entry("openvino", 1, 25.0, ["avx2"])
    assert Calibration([slower, portable, other, code]).chosen() == [code, portable]
    assert Calibration([slower, replace(portable, cost_us=5.0), code]).chosen() == [replace(portable, cost_us=5.0)]
    assert Calibration([code, other]).chosen() == [code]


def test_measuring_takes_turns_and_gives_each_its_own_median():
    clock = [0.0]

    def takes(seconds):
        def run():
            clock[0] += seconds

        return run

    costs = calibrating._interleaved([takes(0.25), takes(0.5)], lambda: clock[0])
    assert costs == [0.25, 0.5]


def test_perturbed_weights_differ_and_zero_their_vectors():
    weights = {"kernel": np.ones((3, 2), np.float32), "bias": np.ones(2, np.float32)}
    other = other_weights(weights)
    assert (other["bias"] == 0).all()
    assert 0 < abs(other["kernel"] - 1).max() <= 0.05 + 1e-6


def test_errors_are_absolute_below_one_and_relative_above():
    def error(got, wanted):
        return largest_error({"a": np.array(got, np.float32)}, {"a": np.array(wanted, np.float32)})

    assert error([0.5], [0.25]) == 0.25
    assert error([110.0], [100.0]) == pytest.approx(0.1)
    assert error([np.nan, np.inf], [np.nan, np.inf]) == 0.0
    assert error([np.nan], [1.0]) == np.inf
    assert error([np.inf], [1.0]) == np.inf
