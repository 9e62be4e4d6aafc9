import numpy as np

from freshet_serving.processor.kernels import row_tiering as tiers
from freshet_serving.processor.tables import tier


def test_sketch_counts_are_never_too_low():
    random = np.random.default_rng(0)
    sketch = np.zeros((tier.SKETCH_ROWS, 256), np.uint8)
    keys = random.integers(0, 300, 4000)
    counts = np.empty(4000, np.uint8)
    tiers.count_up(sketch, keys, counts)
    distinct = np.arange(300)
    estimates = np.empty(300, np.uint8)
    tiers.estimate(sketch, distinct, estimates)
    assert (estimates >= np.bincount(keys, minlength=300)).all()
