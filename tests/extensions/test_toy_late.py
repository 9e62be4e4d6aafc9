"""A late value of its own is a new folder and no other file: installed it scores, removed it is refused by name."""

import json
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest
from tests.support.extensions import install
from tests.support.looked_up import manifest, reference, write_package

TOY = {"input": "f3", "value": 2.5}
ITEMS, F2 = [1, 2, 3], [0.5, 1.5, 2.5]
INPUTS = {"user": np.array(ITEMS), "user_id": np.array([7]), "tags": Ragged.of([["a"]]), "f2": np.float32(F2)}
INPUTS |= {"f0": np.float32([1]), "f1": np.float32([2])}


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """Installs the toy until the test ends."""
    with install(monkeypatch, tmp_path, "toy_late"):
        yield


def document(**toy):
    plain = json.loads(replace(manifest(), executables=[], sections={}).to_json())
    return json.dumps(plain | {"toy_late": TOY | toy}).encode()


def test_constant_scores_as_if_it_was_sent(toy, tmp_path):
    section = Manifest.from_json(document()).sections
    write_package(tmp_path / "repository", sections=section)
    with Processor.initialize(ProcessorConfig(str(tmp_path / "repository"))) as processor:

        def score(**sent):
            return processor.process(PredictRequest("small", INPUTS | sent)).outputs["score"][:, 0]

        left_out, others = score(), np.float32([0.5, 1, -1])
        assert np.array_equal(left_out, score(f3=np.float32([2.5])))
        np.testing.assert_allclose(left_out, reference(ITEMS, F2, [2.5] * 3, ["a"], 1, 2), atol=1e-5)
        np.testing.assert_allclose(score(f3=others), reference(ITEMS, F2, others, ["a"], 1, 2), atol=1e-5)


def test_section_is_kept_to_the_bit_and_checked(toy):
    read = Manifest.from_json(document())
    assert read.fillers["f3"].kind == "constants"
    assert Manifest.from_json(read.to_json()) == read
    for wrong, message in (({"value": "x"}, "toy_late.value: expected a number"), ({"input": "f9"}, "got 'f9'")):
        with pytest.raises(BadInput, match=message):
            Manifest.from_json(document(**wrong))


def test_removed_toy_is_refused_by_name():
    message = "unknown key 'toy_late': as a section of an extension, it needs the extension 'toy_late': this install"
    with pytest.raises(BadInput, match=message):
        Manifest.from_json(document())
