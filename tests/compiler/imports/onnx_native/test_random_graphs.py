"""Random ONNX graphs are served with ONNX Runtime's own numbers, by either importer, or refused in words."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.native_import import NativeImporter
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import open_repository
from tests.compiler.imports.onnx_native.native_models import own_scores
from tests.compiler.imports.onnx_native.random_graphs import RandomGraph
from tests.compiler.imports.replies import started

BUCKETS = (1, 16)
FEW, MANY = range(4), range(4, 200)
LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(16, 30)]
MORE = [pytest.param(seed, marks=(pytest.mark.long, pytest.mark.campaign)) for seed in range(30, 60)]


def checked(drawn, path, repository, random):
    """Compare what is served with ONNX Runtime."""
    with started(repository) as processor:
        for columns, feeds in drawn.requests(random):
            got = processor.process(PredictRequest("random", columns)).outputs["score"]
            expected = own_scores(path, feeds)["score"]
            np.testing.assert_allclose(got.ravel(), expected.ravel(), rtol=1e-4, atol=1e-4, err_msg=str(drawn))


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_random_graph_scores_like_its_runtime(seeds, tmp_path):
    """None of these graphs is refused: ONNX Runtime computes them all as they are."""
    for seed in seeds:
        random = np.random.default_rng(seed)
        drawn, repository = RandomGraph.drawn(random), open_repository(tmp_path / str(seed), create=True)
        path = drawn.write(tmp_path / f"{seed}.onnx")
        with repository.writer("random", 1) as writer:
            NativeImporter(path, "").publish(repository, writer, BUCKETS)
        checked(drawn, path, tmp_path / str(seed), random)


@pytest.mark.tensorflow
@pytest.mark.parametrize("seed", [5, *LONG, *MORE])
def test_translated_random_graph_scores_like_its_runtime_or_is_refused(seed, tmp_path):
    pytest.importorskip("tensorflow", reason="translating needs the train extra")
    random = np.random.default_rng(seed)
    drawn = RandomGraph.drawn(random)
    path = drawn.write(tmp_path / "model.onnx")
    try:
        import_model(path, tmp_path / "models", "random", options=ImportOptions(buckets=BUCKETS, translate=True))
    except BadInput:
        return
    checked(drawn, path, tmp_path / "models", random)
