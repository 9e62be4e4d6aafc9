"""Bodies are read within bounds, and what is wrong with one is one line."""

from freshet_serving.serving.codecs.validation import StrictModel
from freshet_serving.serving.extensions.admin.admin_bodies import MAX_JSON_NBYTES, documented
from tests.serving.extensions.admin.fakes import Client


class Wanted(StrictModel):
    sessions: int


def test_body_that_is_too_long_is_refused_before_reading():
    reply = Client()("PUT", "/admin/sessions", content=b"{" + b" " * MAX_JSON_NBYTES)
    assert (reply.status_code, f"at most {MAX_JSON_NBYTES}" in reply.json()["error"]) == (413, True)


def test_body_schema_is_documented():
    content = documented(Wanted)["requestBody"]["content"]
    assert content["application/json"]["schema"]["required"] == ["sessions"]
