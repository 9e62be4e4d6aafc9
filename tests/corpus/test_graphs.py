"""Graphs that earlier code stored are still compiled: what comes of them scores the stored log as it was scored."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from freshet_serving.compiler.building.recompile import CompileOptions, compile_version
from freshet_serving.compiler.progress import SilentReporter
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.repository.model_repository import Repository
from tests.corpus import adapter
from tests.corpus.entry import FROZEN, read_entry

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]

COMPILED = ("zoo-deepfm", "zoo-mmoe", "user-once", "histories", "import-savedmodel", "import-onnx")
BACKENDS = ("onnxruntime", "openvino", "xla")
OTHER_BACKEND = 1e-5
"""Another backend adds up in another order."""


@pytest.mark.parametrize(
    "backend", ["onnxruntime", *(pytest.param(b, marks=pytest.mark.campaign) for b in BACKENDS[1:])]
)
@pytest.mark.parametrize("name", COMPILED)
def test_recompiled_stored_graph_scores_as_before(name, backend, tmp_path):
    entry = read_entry(FROZEN / name)
    moment = entry.moments[-1]
    repository = entry.lay_out(tmp_path, moment)
    folder = Repository(repository).version(entry.model).folder
    try:
        compile_version(folder, CompileOptions((backend,), "float32"), SilentReporter())
    except FreshetError as error:
        pytest.skip(str(error))

    stored = entry.scores()
    with adapter.opened(repository) as processor:
        assert adapter.computes(processor, entry.model) == f"{backend} float32"
        for request in entry.requests():
            generation, scores = adapter.ask(processor, entry.model, request.inputs, request.way)
            assert generation == moment.generation
            for output, array in scores.items():
                expected = stored[f"{moment.name}/{request.name}"][output]
                np.testing.assert_allclose(array, expected, rtol=0, atol=OTHER_BACKEND)
