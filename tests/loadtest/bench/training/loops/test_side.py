"""The end of the line of a framework's process: commands in, answers out, requests and scores in a file."""

import json

import numpy as np

from freshet_serving import BadInput
from loadtest.bench.training.loops.side import answer, read_requests, write_requests

REQUEST = {"a": np.array([1, 2]), "words/b": np.array(["x", "y"])}, {"score": np.array([0.5, 0.25], np.float32)}


class Side:
    """A framework that scores the same each time."""

    def build(self, network, folder):
        if network == "unknown":
            raise KeyError(network)
        return folder / f"{network}.onnx"

    def attach(self, repository, model):
        raise BadInput("model: expected parameters")

    def learn(self):
        return "1.7"

    def scored(self):
        return [REQUEST, REQUEST]


def test_answers_say_what_was_done_refused_or_failed(tmp_path):
    side, requests = Side(), str(tmp_path / "requests.npz")
    build = {"do": "build", "folder": str(tmp_path)}
    assert answer(side, build | {"network": "mlp"}) == {"source": str(tmp_path / "mlp.onnx")}
    assert answer(side, build | {"network": "unknown"}) == {"failed": "KeyError: 'unknown'"}
    attach = {"do": "attach", "repository": "r", "model": "m"}
    assert answer(side, attach) == {"refused": "model: expected parameters"}
    assert answer(side, {"do": "learn", "requests": requests}) == {"generation": "1.7"}
    assert len(read_requests(tmp_path / "requests.npz")) == 2


def test_requests_and_scores_are_read_as_written(tmp_path):
    write_requests(tmp_path / "r.npz", [REQUEST])
    ((inputs, outputs),) = read_requests(tmp_path / "r.npz")
    assert json.dumps({name: array.tolist() for name, array in inputs.items()}) == (
        '{"a": [1, 2], "words/b": ["x", "y"]}'
    )
    assert outputs["score"].tolist() == [0.5, 0.25]
