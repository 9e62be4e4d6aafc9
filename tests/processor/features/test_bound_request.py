"""A bound request alone: what others than its reply read of it. How it is filled is tested in kernels/test_pool.py."""

import numpy as np

from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.kernels.pool import BY_ENTITY, FLAGS, SENT

# Values, rows, stride, row splits or flags, what fills it.
WORDS = np.array(
    [[11, 2, 1, 0, SENT], [12, 2, 1, 99, BY_ENTITY], [13, 2, 1, 0, BY_ENTITY], [14, 1, 3, 77, SENT]], np.int64
)


def test_request_without_flags_loses_the_records_of_what_is_left_out():
    request = BoundRequest(2, 5, WORDS.tobytes(), ("kept",), unknown=(("item", np.zeros(2)),))
    plain = request.without_flags()
    found = np.frombuffer(plain.words, np.int64).reshape(WORDS.shape)
    expected = WORDS.copy()
    expected[1, FLAGS] = 0
    assert (found == expected).all()
    assert plain == request._replace(words=plain.words, unknown=())
    # The reply's own words stay as they were.
    assert request.words == WORDS.tobytes()


def test_request_without_records_is_its_own_plain_form():
    request = BoundRequest(2, 5, WORDS.tobytes(), ())
    assert request.without_flags() is request
