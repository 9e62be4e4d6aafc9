"""A batch that fails, perhaps for the values of one of its requests, is computed again, each request by itself."""

import pytest

from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.processor.sessions.session import retry_groups


@pytest.mark.parametrize("error", [BadInput("out of range"), NotReady("a store is away"), FreshetError("onnxruntime")])
def test_requests_of_a_failed_batch_are_computed_by_themselves(error):
    works = [object(), object(), object()]
    assert retry_groups(works, error) == [[work] for work in works]
    assert retry_groups(works[:1], error) is None
