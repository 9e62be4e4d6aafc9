import numpy as np
import pytest

from freshet_serving import Prediction
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.client.prediction import missing_of


def test_one_of_several_outputs_must_be_named():
    array = np.zeros((2, 1), np.float32)
    prediction = Prediction("m", 1, "1.0", {"ctr": array, "cvr": array + 1})
    assert prediction.scores("cvr").tolist() == [1, 1]
    for name in (None, "cvx"):
        with pytest.raises(BadInput, match="expected one of ctr, cvr"):
            prediction.scores(name)


def test_missing_features_are_read_from_the_header():
    assert missing_of("") == {}
    assert missing_of("age=late, a%2Cb=null, ...") == {"age": "late", "a,b": "null"}
