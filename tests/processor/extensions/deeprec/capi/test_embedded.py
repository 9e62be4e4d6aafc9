import json

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.extensions.deeprec.capi import embedded
from tests.processor.extensions.deeprec.test_codec import array
from tests.support.packages import make_inputs, write_package

USERS = [0, 3, 7]


def predict_request(last=None):
    """Three rows of the small model. last: its very last float."""
    made = eas.Request(signature_name="serving_default")
    array(made.inputs["user"], 9, [3], int64_val=USERS)
    array(made.inputs["tags"], 7, [3, 1], string_val=[b"a", b"b", b"zz"])
    floats = make_inputs(USERS)["floats"]
    floats[-1, -1] = floats[-1, -1] if last is None else last
    array(made.inputs["floats"], 1, floats.shape, float_val=floats.ravel())
    return made.SerializeToString()


@pytest.fixture
def number(tmp_path):
    write_package(tmp_path, users=USERS)
    number, message = embedded.initialize(json.dumps({"repository": str(tmp_path)}).encode())
    assert number > 0, message
    yield number
    embedded.close(number)


def test_request_is_answered_with_a_reply(number):
    status, reply = embedded.process(number, predict_request())
    assert status == 200
    assert list(eas.Response.FromString(reply).outputs["score"].array_shape.dim) == [3, 1]


def test_error_is_returned_as_a_status_and_a_message(number):
    status, message = embedded.process(number, b"\xff")
    assert status == 400
    assert b"PredictRequest" in message


def test_request_limit_comes_from_the_configuration(tmp_path):
    write_package(tmp_path, users=USERS)
    config = {"repository": str(tmp_path), "max_rows": 2, "max_body_bytes": 1000}
    number, _ = embedded.initialize(json.dumps(config).encode())
    try:
        status, message = embedded.process(number, predict_request())
        assert (status, message[:50]) == (413, b"max_rows: expected at most 2 rows per request, got")
        status, message = embedded.process(number, bytes(1001))
        assert (status, message[:45]) == (413, b"max_body_bytes: expected at most 1000 bytes, ")
    finally:
        embedded.close(number)


def test_infinite_number_error_names_the_input(number):
    for value, got in ((float("-inf"), b"-inf"), (3.3e38, b"3.3e+38")):
        status, message = embedded.process(number, predict_request(last=value))
        assert status == 400
        assert message.startswith(b"input 'floats': ")
        assert message.endswith(b"got %b in row 2, column 3" % got)


def test_info_reports_the_served_generation(number):
    status, text = embedded.info(number)
    assert status == 200
    assert json.loads(text)["models"]["small"]["generation"] == "1.0"


def test_closed_handle_is_refused_and_closing_twice_is_allowed(number):
    embedded.close(number)
    embedded.close(number)
    assert embedded.process(number, predict_request())[0] == 404
    assert embedded.info(number)[0] == 404


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"", "expected JSON"),
        (b"[]", "expected an object with a repository"),
        (b'{"repository": 7}', "repository: expected str, got int"),
        (b'{"repository": "x", "workers": 2}', "got 'workers'"),
        (b'{"repository": "x", "poll_interval_s": 0}', "poll_interval_s"),
        (b" " * (embedded.MAX_CONFIG_NBYTES + 1), "at most"),
        (b"[" * 100_000, "expected JSON"),
    ],
)
def test_invalid_configurations_are_refused(config, message):
    with pytest.raises(BadInput, match=message):
        embedded.EmbeddedModel(config)
    assert embedded.initialize(config)[0] == 0


def test_unreachable_repository_is_logged_at_intervals(number, monkeypatch, caplog):
    waits, served = [], embedded._open[number]

    class Closing:
        def wait(self, delay_s):
            waits.append(delay_s)
            return len(waits) > 4

        set = served._closing.set

    looks = iter([OSError("gone"), OSError("gone"), [], []])

    def poll():
        found = next(looks)
        if isinstance(found, OSError):
            raise found
        return found

    served._closing.set()
    served._poller.join()
    monkeypatch.setattr(served, "_closing", Closing())
    monkeypatch.setattr(served._processor, "poll", poll)
    served._poll(0.05)
    assert waits == [0.05, embedded.REST_S, embedded.REST_S, 0.05, 0.05]
    assert caplog.text.count("polling the repository failed; retrying in 5 s") == 2
