import numpy as np
import pytest

from freshet_serving import Prediction
from freshet_serving.processor.errors import BadInput


def test_one_of_several_outputs_must_be_named():
    array = np.zeros((2, 1), np.float32)
    prediction = Prediction("m", 1, "1.0", {"ctr": array, "cvr": array + 1})
    assert prediction.scores("cvr").tolist() == [1, 1]
    for name in (None, "cvx"):
        with pytest.raises(BadInput, match="expected one of ctr, cvr"):
            prediction.scores(name)
