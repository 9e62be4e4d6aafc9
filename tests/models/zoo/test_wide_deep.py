import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.models.zoo.wide_deep import build
from tests.models.zoo.layouts import LAYOUTS, make_layout

pytestmark = pytest.mark.tensorflow

CROSSED = {"crosses of dim 1": make_layout(1, 4, 1, 0), "crosses alone": make_layout(1, 1)}


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), *CROSSED.values()], ids=[*LAYOUTS, *CROSSED])
def test_logit_is_wide_over_all_plus_deep_over_wider_spans(layout):
    arch = build(layout, (6, 5), seed=3)
    weights = {v.path: v.numpy() for v in arch.logits.variables}
    x = np.random.default_rng(0).standard_normal((7, layout.width), np.float32)
    deep = [s for s in layout.spans if s.width > 1 or s in layout.floats] or layout.spans
    h = np.concatenate([x[:, s.offset : s.offset + s.width] for s in deep], axis=1)
    for i in range(2):
        h = np.maximum(h @ weights[f"deep_{i}/kernel"] + weights[f"deep_{i}/bias"], 0)
    wanted = x @ weights["wide/kernel"] + weights["wide/bias"] + h @ weights["deep_out/kernel"]

    np.testing.assert_allclose(arch.logits(x).numpy(), wanted, atol=1e-5)
