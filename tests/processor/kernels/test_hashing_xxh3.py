"""The kernel against the xxhash library."""

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.kernels.hashing import hash_strings

SEEDS = [0, 1, 7, 2**31, 2**32 + 5, 2**63 - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_hash_equals_the_library_for_every_length(seed):
    random = np.random.default_rng(seed % 1000)
    strings = [random.bytes(length) for length in range(300)] + [random.bytes(5000)]
    wanted = [xxhash.xxh3_64_intdigest(s, seed) for s in strings]
    assert hash_strings(Strings.of(strings), seed).view(np.uint64).tolist() == wanted


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=90) | st.binary(max_size=600), max_size=20), st.integers(0, 2**63 - 1), st.data())
def test_hash_equals_the_library_for_any_column_and_slice(strings, seed, data):
    column = Strings.of(strings)
    first = data.draw(st.integers(0, len(strings)))
    part = Strings(column.data, column.offsets[first:])
    wanted = [xxhash.xxh3_64_intdigest(s, seed) for s in column.tolist()[first:]]
    assert hash_strings(part, seed).view(np.uint64).tolist() == wanted
