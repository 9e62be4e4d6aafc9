"""`freshet erase`: a request in the trainer's folder, and what it does not reach."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import Erasures
from tests.serving.commands.running import run


def test_request_lies_in_the_folder_of_the_trainer(tmp_path):
    (tmp_path / ".checkpoints" / "shop").mkdir(parents=True)
    told = run("erase", "shop", "ann", "--repository", str(tmp_path))
    assert told.startswith("shop: the trainer forgets the user with its next checkpoint; not reached: the log")
    assert len(Erasures.of_model(tmp_path, "shop").asked()) == 1


def test_folder_without_a_trainer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected the folder of the trainer of 'shop'"):
        run("erase", "shop", "ann", "--repository", str(tmp_path))
