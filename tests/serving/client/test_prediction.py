import numpy as np
import pytest

from freshet_serving import Prediction
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.client.prediction import prediction_of


def test_one_of_several_outputs_must_be_named():
    array = np.zeros((2, 1), np.float32)
    prediction = Prediction("m", 1, "1.0", {"ctr": array, "cvr": array + 1})
    assert prediction.scores("cvr").tolist() == [1, 1]
    for name in (None, "cvx"):
        with pytest.raises(BadInput, match="expected one of ctr, cvr"):
            prediction.scores(name)


def test_details_are_read_from_headers():
    headers = {
        "x-model-generation": "1.3",
        "x-features-missing": "age=late, a%2Cb=null, ...",
        "x-unknown-rows": "0, 3-5",
        "x-features": '{"age": [31]}',
        "x-unfilled": "2",
    }
    prediction = prediction_of("m", 1, {}, lambda name: headers.get(name, ""))
    assert (prediction.generation, prediction.features, prediction.unfilled) == ("1.3", {"age": [31]}, 2)
    assert prediction.features_missing == {"age": "late", "a,b": "null"}
    assert (prediction.unknown_rows, prediction.dropped_rows) == ((0, 3, 4, 5), ())
    assert prediction_of("m", 1, {}, lambda name: "") == Prediction("m", 1, "", {})


@pytest.mark.parametrize("name", ["x-unknown-rows", "x-features", "x-unfilled"])
def test_malformed_header_is_refused(name):
    with pytest.raises(ValueError):
        prediction_of("m", 1, {}, lambda header: "[1]" if header == name else "")
