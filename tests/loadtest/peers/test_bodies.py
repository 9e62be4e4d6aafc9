import numpy as np
import pytest

from loadtest.load.payload import bench_count, bench_inputs
from loadtest.peers import bodies
from loadtest.peers.plain import ROW_NBYTES, split


@pytest.mark.parametrize("candidates", [1, 64])
def test_raw_bodies_contain_the_same_inputs(candidates):
    payload = bodies.payload("raw", "/predict", candidates, 100)
    inputs = bench_inputs(candidates, bench_count(candidates), 100)
    assert len(payload.bodies) == len(inputs)
    for body, wanted in zip(payload.bodies, inputs):
        assert len(body) == ROW_NBYTES * candidates
        ids, floats = split(body)
        assert np.array_equal(ids, wanted["ids"])
        assert np.array_equal(floats, wanted["floats"])


def test_scores_are_parsed_from_bytes_and_json():
    assert bodies.scores("raw", np.float32([0.5, 0.25]).tobytes(), {}).tolist() == [0.5, 0.25]
    assert bodies.scores("json", b'{"outputs":[{"name":"score","data":[0.5,0.25]}]}', {}).tolist() == [0.5, 0.25]
    with pytest.raises(ValueError, match="infer reply"):
        bodies.scores("json", b"{}", {})
    with pytest.raises(ValueError, match="body"):
        bodies.payload("xml", "/", 1, 100)
