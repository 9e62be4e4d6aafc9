"""Gradients of several processes added up, against numpy."""

import numpy as np
import pytest

from freshet_serving.models.parallel import id_kernels


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_added_in_rank_order_without_unread_rows(parts):
    random = np.random.default_rng(0)
    rows, dim = 30, 4
    sums, times = np.zeros((rows, dim), np.float32), np.zeros(rows, np.int64)
    found, counted = np.zeros_like(sums), np.zeros_like(times)
    place = np.full(rows, -1, np.int32)
    ranks = [(random.permutation(rows)[:20] - 3, random.integers(0, 3, 20)) for _ in range(3)]
    given = [random.standard_normal((20, dim)).astype(np.float32) for _ in ranks]
    for part in range(parts):
        touched, own, met = np.empty(60, np.int64), np.empty((60, dim), np.float32), np.empty(60, np.int64)
        count = 0
        for (refs, read), gradients in zip(ranks, given):
            count = id_kernels.add_up(refs, read, gradients, part, parts, place, touched, own, met, count)
        assert len(set(touched[:count].tolist())) == count
        assert (touched[:count] % parts == part).all()
        found[touched[:count]], counted[touched[:count]] = own[:count], met[:count]
    for (refs, read), gradients in zip(ranks, given):
        for ref, n, gradient in zip(refs, read, gradients):
            if ref >= 0 and n:
                sums[ref] += gradient
                times[ref] += n
    assert np.array_equal(found, sums)
    assert np.array_equal(counted, times)
