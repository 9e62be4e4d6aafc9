"""The hook in real PyTorch loops, in one process of a Python that has PyTorch (torch_trainer)."""

import json

import pytest

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


def test_rows_moving_without_a_sparse_gradient_are_compared(said):
    said("lookups")


def test_served_and_trained_weights_agree_after_rollbacks_and_restarts(said):
    said("rollback")


def test_model_that_does_not_match_the_package_is_refused(said):
    said("names")


def test_weights_changed_between_steps_are_published(said):
    said("changed_by_hand")


def test_a_replaced_embedding_is_refused_before_anything_is_published(said):
    said("replaced")


def test_an_optimizer_whose_class_runs_no_step_hooks_publishes(said):
    said("wrapped_steps")


def test_left_out_parameters_are_skipped_and_merged_statistics_refused(said):
    said("unused")
