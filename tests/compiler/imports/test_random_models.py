"""Random TensorFlow models are served with TensorFlow's own numbers, or refused in words."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.foreign import without_deprecations
from tests.compiler.imports.random_models import RandomModel
from tests.compiler.imports.replies import started

LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20)]
MORE = [pytest.param(seed, marks=(pytest.mark.long, pytest.mark.campaign)) for seed in range(20, 60)]


@pytest.mark.parametrize("seed", [0, 1, *LONG, *MORE])
def test_random_model_scores_like_tensorflow_or_is_refused(seed, tmp_path):
    random = np.random.default_rng(seed)
    drawn = RandomModel.drawn(random)
    with without_deprecations():
        path, module = drawn.write(tmp_path / "model")
        try:
            import_model(path, tmp_path / "models", "random", options=ImportOptions(buckets=(1, 16)))
        except BadInput:
            return
    dtype = tf.string if drawn.words else drawn.dtype
    with started(tmp_path / "models") as processor:
        for ids in drawn.requests(random):
            expected = module.score(tf.constant(ids, dtype))["score"].numpy()
            column = Strings.of(ids.ravel().tolist()) if drawn.words else ids
            column = Ragged.of(ids.tolist()) if drawn.ids == "free" else column
            got = processor.process(PredictRequest("random", {"ids": column})).outputs["score"]
            np.testing.assert_allclose(got.ravel(), expected.ravel(), rtol=1e-4, atol=1e-4, err_msg=str(drawn))
