import pytest

from freshet_serving.models.runs.run_lock import only_trainer
from freshet_serving.processor.errors import Conflict


def test_second_trainer_of_a_model_is_refused_until_the_first_has_ended(tmp_path):
    folder = tmp_path / ".checkpoints" / "ctr"
    with (
        only_trainer(folder, "ctr"),
        pytest.raises(Conflict, match="another trainer of 'ctr'"),
        only_trainer(folder, "ctr"),
    ):
        pass
    with only_trainer(folder, "ctr"), only_trainer(tmp_path / ".checkpoints" / "other", "other"):
        pass


def test_lock_is_free_again_after_a_failed_run(tmp_path):
    with pytest.raises(ValueError, match="the run failed"), only_trainer(tmp_path, "ctr"):
        raise ValueError("the run failed")
    with only_trainer(tmp_path, "ctr"):
        pass
