"""float16 on the way: what is lost of each number, also of very small and very large ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from freshet_serving.models.parallel.number_wire import NumberMessage, from_wire, to_wire
from freshet_serving.models.parallel.ranks import packed, unpacked

finite = arrays_of.arrays(np.float32, st.integers(0, 20), elements=st.floats(-(2.0**127), 2.0**127, width=32))


def there(parts, wire):
    """The numbers of vectors after their way."""
    outgoing = NumberMessage([len(part) for part in parts], wire)
    for room, part in zip(outgoing.parts, parts):
        room[:] = part
    message = outgoing.packed()
    assert message.tobytes() == packed(to_wire(parts, wire)).tobytes()
    return from_wire(unpacked(message))


@given(finite)
def test_float32_is_sent_unchanged(numbers):
    assert there([numbers[:3], numbers[3:]], "float32").tobytes() == numbers.tobytes()


@given(finite)
def test_float16_keeps_11_bits_per_number_and_39_overall(numbers):
    assert to_wire([numbers], "float16")[1].nbytes == numbers.nbytes // 2
    found = there([numbers[:3], numbers[3:]], "float16")
    largest = np.abs(numbers.astype(np.float64)).max(initial=0.0)
    off = np.abs(found.astype(np.float64) - numbers)
    # Numbers that are subnormal in float32 are off by what float32 itself rounds.
    assert (off <= np.maximum(2.0**-11 * np.abs(numbers.astype(np.float64)), 2.0**-38 * largest) + 1e-44).all()


def test_non_finite_numbers_stay_non_finite():
    found = there([np.array([np.inf, np.nan, 1], np.float32)], "float16")
    assert np.isinf(found[0])
    assert np.isnan(found[1])
