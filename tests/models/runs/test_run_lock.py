import pytest

from freshet_serving.models.runs.run_lock import trainer_lock
from freshet_serving.processor.errors import Conflict


def test_second_trainer_is_refused_while_the_first_runs(tmp_path):
    folder = tmp_path / ".checkpoints" / "ctr"
    with (
        trainer_lock(folder, "ctr"),
        pytest.raises(Conflict, match="another trainer of 'ctr'"),
        trainer_lock(folder, "ctr"),
    ):
        pass
    with trainer_lock(folder, "ctr"), trainer_lock(tmp_path / ".checkpoints" / "other", "other"):
        pass


def test_lock_is_free_again_after_a_failed_run(tmp_path):
    with pytest.raises(ValueError, match="the run failed"), trainer_lock(tmp_path, "ctr"):
        raise ValueError("the run failed")
    with trainer_lock(tmp_path, "ctr"):
        pass
