"""What headers say of a request, seen where the processor gets it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import TooLarge
from freshet_serving.serving.client.prediction import prediction_of
from freshet_serving.serving.request_headers import MAX_LISTED_NBYTES, list_defaulted, list_rows
from tests.serving.fakes import send
from tests.serving.http.data_app import BODY, serve


def test_sticky_key_reaches_the_split():
    app, processor, _, _ = serve()
    send(app, "POST", "/v1/models/ctr:predict", BODY, {"x-sticky-key": "user-7"})
    assert processor.requests[-1].key == b"user-7"


def test_defaulted_inputs_are_listed_up_to_a_length():
    assert list_defaulted({"age": "late", "a,b": "null"}) == b"age=late, a%2Cb=null"
    listed = list_defaulted({f"feature_{n}": "not_found" for n in range(1000)})
    assert len(listed) <= MAX_LISTED_NBYTES + len(", ...")
    assert listed.endswith(b", ...")


@given(st.sets(st.integers(0, 300)))
def test_listed_rows_are_those_that_a_client_reads(rows):
    rows = tuple(sorted(rows))
    headers = {"x-unknown-rows": list_rows(rows).decode()}
    assert prediction_of("ctr", 1, {}, lambda name: headers.get(name, "")).unknown_rows == rows


def test_rows_are_listed_as_ranges():
    assert list_rows([0, 2, 3, 4, 9]) == b"0, 2-4, 9"
    assert list_rows(range(100_000)) == b"0-99999"


def test_too_many_rows_for_a_header_are_refused():
    with pytest.raises(TooLarge, match="send fewer rows at once"):
        list_rows(range(0, 4000, 2))
