"""A batch that a graph refuses for values of one of its requests is computed again, each request by itself."""

import pytest

from freshet_serving.processor.backends import RefusedRun
from freshet_serving.processor.errors import FreshetError, NotReady
from freshet_serving.processor.sessions.session import retry_groups


@pytest.mark.parametrize("error", [RefusedRun("out of range"), NotReady("a store is away")])
def test_requests_of_a_refused_batch_are_computed_by_themselves(error):
    works = [object(), object(), object()]
    assert retry_groups(works, error) == [[work] for work in works]
    assert retry_groups(works[:1], error) is None


def test_failure_of_the_library_is_one_of_the_whole_batch():
    assert retry_groups([object(), object()], FreshetError("onnxruntime failed")) is None
