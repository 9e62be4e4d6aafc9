"""The hook in real PyTorch loops, in one process of a Python that has PyTorch (torch_trainer)."""

import contextlib
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.models.publishing import torch_hook
from freshet_serving.models.publishing.torch_hook import _matched, _without
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest, Output, StageEntry, StageLookup, TableEntry
from tests.models.publishing.torches import run_torch


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """case -> the lines that it printed; fails if the case has failed."""
    printed = run_torch("tests.models.publishing.torch_trainer", tmp_path_factory.mktemp("torch"))
    outcomes = json.loads(printed.splitlines()[-1])

    def lines(case):
        assert outcomes[case]["error"] == ""
        return outcomes[case]["said"]

    return lines


def test_served_weights_equal_the_model_for_every_optimizer(said):
    lines = said("optimizers")
    told = {line.partition(":")[0] for line in lines if line.endswith("told")}
    assert len(lines) == 8
    assert told == {"SGD", "Adagrad", "SparseAdam and Adam"}


@pytest.mark.parametrize(
    "case", ["lookups", "rollback", "names", "changed_by_hand", "replaced", "wrapped_steps", "unused"]
)
def test_case_holds_in_a_loop_of_pytorch(said, case):
    said(case)


class Tensor:
    """What matching asks of a parameter."""

    requires_grad = True

    def __init__(self, *shape):
        self.shape = shape

    def dim(self):
        return len(self.shape)

    def numel(self):
        return math.prod(self.shape)


def staged(**noted):
    """A package whose stage reads a weight, and notes of its import."""
    stage = StageEntry("onnxruntime", "stage/graph.onnx", [Input("s", "float32")], [StageLookup("W", "", "W")])
    tables = [TableEntry("W", 4, 3)]
    return SimpleNamespace(
        manifest=Manifest(
            "m", 1, "imported", 0.0, [], [], tables, [Output("score")], 1, {}, {}, stage=stage, notes={"import": noted}
        )
    )


def refusal(publisher, state):
    with pytest.raises(BadInput) as error:
        _matched(publisher, SimpleNamespace(named_modules=list), state)
    return str(error.value)


def test_weight_of_a_stage_is_matched_in_its_own_shape():
    publisher, weight = staged(constants=[], merged=[]), Tensor(3, 4)
    tables, dense, left_out = _matched(publisher, SimpleNamespace(named_modules=list), {"W": weight})
    assert [(entry.name, tensor) for entry, tensor in tables] == [("W", weight)]
    assert (dense, left_out) == ({}, {})
    assert "weight 'W': expected 3 rows of 4 numbers, got shape [4, 3]" in refusal(publisher, {"W": Tensor(4, 3)})
    assert "weight 'W': expected 3 rows of 4 numbers, got shape []" in refusal(publisher, {"W": Tensor()})


def test_second_name_of_a_tied_weight_is_neither_refused_nor_left_out():
    tied = Tensor(3, 4)
    tables, dense, left_out = _matched(
        staged(constants=[], merged=[]), SimpleNamespace(named_modules=list), {"W": tied, "V": tied}
    )
    assert [entry.name for entry, _ in tables] == ["W"]
    assert (dense, left_out) == ({}, {})


def test_leaving_out_is_advised_only_for_what_inference_cannot_use():
    state = {"W": Tensor(3, 4), "aux": Tensor(2, 2)}
    assert "pass leave_out=['aux']" in refusal(staged(constants=[], merged=[]), state)
    for noted, why in (
        ({}, "may be a constant in the package's stage"),
        ({"constants": [], "merged": ["onnx::GRU_7"]}, "merged it, or others, into weights that have no name"),
        ({"constants": ["aux"], "merged": []}, "inference computes with it, but the package has it as a constant"),
    ):
        said = refusal(staged(**noted), state)
        assert why in said
        assert "leave_out" not in said
    renamed = {"gru": Tensor(3, 4), "aux": Tensor(2, 2)}
    assert "leave_out" not in refusal(staged(constants=[], merged=[]), renamed)


def test_what_a_stage_computes_with_cannot_be_left_out():
    with pytest.raises(BadInput, match="leave_out: expected what inference does not use, got 'aux' of the package"):
        _without({"aux": Tensor(2, 2)}, ["aux"], staged(constants=["aux"], merged=[]))


class NumpyTensor:
    """A parameter that numpy holds."""

    _version = 0

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def detach(self):
        return self

    float = cpu = detach

    def numpy(self):
        return self.values

    def to(self, _):
        return self

    def copy_(self, other):
        self.values[...] = other.values


def test_weight_of_a_stage_is_read_and_written_by_its_rows(monkeypatch):
    library = SimpleNamespace(no_grad=contextlib.nullcontext, from_numpy=NumpyTensor)
    monkeypatch.setattr(torch_hook, "_torch", lambda: library)
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    side = torch_hook._TorchStageWeight(NumpyTensor(values), 4)

    side.write(np.array([2]), np.full((1, 4), 7, np.float32))

    assert values[0, :, 0].tolist() == [0.0, 4.0, 7.0]
    assert side.read(np.array([1, 2])).tolist() == [[4, 5, 6, 7], [7, 7, 7, 7]]
    assert side.touched() is None
