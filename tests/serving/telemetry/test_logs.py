"""What a log line holds, for people and for machines."""

import json
import logging
import signal
import subprocess
import sys

import pytest

from serving.telemetry.logs import AccessLog, JsonFormatter, log_to_stderr


@pytest.fixture
def root():
    """The root logger, put back afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


def record(message="%s was %d", args=("it", 7), **extra):
    made = logging.LogRecord("freshet.x", logging.WARNING, __file__, 1, message, args, None)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def test_a_json_line_is_one_object_with_the_fields_beside_the_message():
    line = json.loads(JsonFormatter("worker-1").format(record(fields={"request_id": "abc", "status": 500})))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning", "logger": "freshet.x", "message": "it was 7", "process": "worker-1",
        "request_id": "abc", "status": 500,
    }  # fmt: skip


def test_an_exception_is_a_field_of_its_line():
    try:
        raise ValueError("why")
    except ValueError as error:
        made = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), (ValueError, error, error.__traceback__))
    text = JsonFormatter("").format(made)
    assert "\n" not in text
    assert "ValueError: why" in json.loads(text)["exception"]


@pytest.mark.parametrize(("form", "seen"), [("json", '"message":"hello"'), ("text", "INFO freshet.x worker-1 hello")])
def test_the_log_goes_to_standard_error(root, capsys, form, seen):
    log_to_stderr("info", form, "worker-1")
    logging.getLogger("freshet.x").info("hello")
    assert seen in capsys.readouterr().err


def test_an_access_log_has_a_share_of_the_requests(caplog):
    caplog.set_level(logging.INFO, "freshet.access")
    access = AccessLog(0.25)
    for n in range(8):
        access("kserve", "ctr:infer", 200, 0.0015, f"id-{n}", 64)
    assert [r.getMessage() for r in caplog.records] == [
        "kserve ctr:infer 200 1.500 ms 64 bytes id-3", "kserve ctr:infer 200 1.500 ms 64 bytes id-7",
    ]  # fmt: skip
    assert caplog.records[0].fields["request_id"] == "id-3"


def test_a_process_that_dies_of_a_page_that_is_gone_says_so(tmp_path):
    (tmp_path / "table").write_bytes(bytes(1 << 16))
    program = (
        "import mmap, os, sys; from serving.telemetry.logs import last_words; last_words()\n"
        "with open(sys.argv[1], 'r+b') as file: mapped = mmap.mmap(file.fileno(), 0)\n"
        "os.truncate(sys.argv[1], 0); mapped[1 << 15]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "table")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr
