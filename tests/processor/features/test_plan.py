"""What a plan makes of its manifest; how it binds is in test_binding.py, how it fills in kernels/test_pool.py."""

import numpy as np

from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.pool import OFFSET
from tests.support.packages import manifest


def test_features_are_in_order_only_as_they_lie_in_the_matrix():
    plan, names = SparsePlan(made := manifest()), [f.name for f in made.features]
    assert plan.in_order(names)
    assert not plan.in_order(names[:-1])
    assert not plan.in_order([*names[1:], names[0]])


def test_features_alone_lie_side_by_side():
    plan, names = SparsePlan(made := manifest()), [f.name for f in made.features][::-1]
    widths = [f.width for f in made.features][::-1]
    pooling = plan.pooling(names)
    assert pooling.plan[:, OFFSET].tolist() == np.cumsum([0, *widths[:-1]]).tolist()
