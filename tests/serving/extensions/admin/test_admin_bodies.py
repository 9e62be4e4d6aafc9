"""Bodies are read within bounds, and what is wrong with one is one line."""

import pytest

from freshet_serving.serving.codecs.validation import StrictModel
from freshet_serving.serving.extensions.admin.admin_bodies import MAX_JSON_NBYTES, documented
from tests.processor.engines import processors
from tests.serving.extensions.admin.fakes import Client
from tests.serving.extensions.admin.test_api import JSON
from tests.serving.extensions.admin.test_model_views import Real
from tests.support.packages import write_package


class Wanted(StrictModel):
    sessions: int


def test_body_that_is_too_long_is_refused_before_reading():
    reply = Client()("PUT", "/admin/sessions", content=b"{" + b" " * MAX_JSON_NBYTES)
    assert (reply.status_code, f"at most {MAX_JSON_NBYTES}" in reply.json()["error"]) == (413, True)


@pytest.mark.parametrize(
    ("levels", "error"), [(31, "policy.user_state: expected"), (32, "at most 32 levels"), (1000, "at most 32 levels")]
)
def test_body_that_is_nested_too_deeply_is_refused(levels, error, tmp_path):
    write_package(tmp_path)
    body = b'{"user_state": ' + b'{"a": ' * levels + b"1" + b"}" * levels + b"}"
    with processors(tmp_path) as build:
        reply = Real(build())("PUT", "/admin/models/small/policy", content=body, headers=JSON)
    assert (reply.status_code, error in reply.json()["error"]) == (400, True)


def test_body_schema_is_documented():
    content = documented(Wanted)["requestBody"]["content"]
    assert content["application/json"]["schema"]["required"] == ["sessions"]
