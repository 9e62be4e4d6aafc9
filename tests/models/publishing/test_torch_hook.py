"""The hook in real PyTorch loops, in a process of a Python that has PyTorch (torch_trainer)."""

from tests.models.publishing.torches import run_torch

TRAINER = "tests.models.publishing.torch_trainer"


def test_served_weights_equal_the_model_for_every_optimizer(tmp_path):
    said = run_torch(TRAINER, "optimizers", tmp_path).splitlines()
    told = {line.partition(":")[0] for line in said if line.endswith("told")}
    assert len(said) == 8
    assert told == {"SGD", "Adagrad", "SparseAdam and Adam"}


def test_rows_moving_without_a_sparse_gradient_are_compared(tmp_path):
    run_torch(TRAINER, "lookups", tmp_path)


def test_served_and_trained_weights_agree_after_rollbacks_and_restarts(tmp_path):
    run_torch(TRAINER, "rollback", tmp_path)


def test_model_that_does_not_match_the_package_is_refused(tmp_path):
    run_torch(TRAINER, "names", tmp_path)


def test_weights_changed_between_steps_are_published(tmp_path):
    run_torch(TRAINER, "changed_by_hand", tmp_path)


def test_a_replaced_embedding_is_refused_before_anything_is_published(tmp_path):
    run_torch(TRAINER, "replaced", tmp_path)


def test_an_optimizer_whose_class_runs_no_step_hooks_publishes(tmp_path):
    run_torch(TRAINER, "wrapped_steps", tmp_path)


def test_left_out_parameters_are_skipped_and_merged_statistics_refused(tmp_path):
    run_torch(TRAINER, "unused", tmp_path)
