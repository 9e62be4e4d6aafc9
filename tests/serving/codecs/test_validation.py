"""Bodies of the admin port: strict, and refused by the field."""

import pytest
from pydantic import Field

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.codecs.validation import StrictModel, validated


class Sample(StrictModel):
    count: int = Field(gt=0)
    share: dict[str, int | float] | None = None


def test_json_document_becomes_its_model():
    assert validated({"count": 3}, Sample).count == 3


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"count": 0}, "body.count: expected a number above 0, got 0"),
        ({"count": "3"}, "body.count: expected an integer, got '3'"),
        ({"count": True}, "body.count: expected an integer, got true"),
        ({"count": 3, "more": 1}, "body.more: unknown field; known: count, share"),
        ({"cuont": 3}, r"body.count: expected a value, got nothing"),
        ({"count": 3, "cuont": 3}, r"body.cuont: unknown field \(did you mean 'count'\?\)"),
        ({"count": 3, "share": {"1": "a"}}, "body.share.1: expected an integer or a number, got 'a'"),
        ({}, "body.count: expected a value, got nothing"),
        (["count"], "body: expected an object, got a list"),
    ],
)
def test_invalid_field_is_refused_by_name(document, message):
    with pytest.raises(BadInput, match=message):
        validated(document, Sample)
