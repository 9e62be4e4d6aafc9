"""Bodies of the admin port: strict, and refused by the field."""

import pytest
from pydantic import Field

from processor.errors import BadInput
from serving.admin.validation import Strict, validated


class Sample(Strict):
    count: int = Field(gt=0)


def test_a_document_becomes_its_model():
    assert validated({"count": 3}, Sample).count == 3


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"count": 0}, "body.count: Input should be greater than 0"),
        ({"count": "3"}, "body.count: Input should be a valid integer"),
        ({"count": True}, "body.count: Input should be a valid integer"),
        ({"count": 3, "more": 1}, "body.more: Extra inputs are not permitted"),
        ({}, "body.count: Field required"),
        (["count"], "body: Input should be a valid dictionary"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(document, message):
    with pytest.raises(BadInput, match=message):
        validated(document, Sample)
