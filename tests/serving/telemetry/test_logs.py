"""What a log line holds, for people and for machines."""

import io
import json
import logging
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock
from freshet_serving.serving.telemetry import logs
from freshet_serving.serving.telemetry.logs import (
    BURST,
    INTERVAL_S,
    AccessLog,
    JsonFormatter,
    RateLimitedHandler,
    TextFormatter,
    log_to_stderr,
    printable,
)

ENDS, ESCAPES = "\r\n\u2028\u2029\x85\x0b\x0c\x1c", "\x1b[2K\x1b[1A\x9b31m\x7f\x08\0"
TEXT = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["a\n2026-11-22 12:00:00,000 ERROR forged", ENDS, ESCAPES, "\u202egnp.exe", "\ud800", "%s %d"]
)


@pytest.fixture
def root():
    """The root logger, put back afterwards."""
    logger = logging.getLogger()
    handlers, level, hook = logger.handlers[:], logger.level, threading.excepthook
    yield logger
    logger.handlers[:], logger.level, threading.excepthook = handlers, level, hook


def record(message="%s was %d", args=("it", 7), **extra):
    made = logging.LogRecord("freshet.x", logging.WARNING, __file__, 1, message, args, None)
    for name, value in extra.items():
        setattr(made, name, value)
    return made


def test_json_line_is_one_object_with_extra_fields():
    line = json.loads(JsonFormatter("worker-1").format(record(fields={"request_id": "abc", "status": 500})))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning", "logger": "freshet.x", "message": "it was 7", "process": "worker-1",
        "request_id": "abc", "status": 500,
    }  # fmt: skip


def test_exception_is_a_field_of_its_line():
    try:
        raise ValueError("why")
    except ValueError as error:
        made = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), (ValueError, error, error.__traceback__))
    text = JsonFormatter("").format(made)
    assert "\n" not in text
    assert "ValueError: why" in json.loads(text)["exception"]


@pytest.mark.parametrize(("form", "seen"), [("json", '"message":"hello"'), ("text", "INFO freshet.x worker-1 hello")])
def test_log_goes_to_standard_error(root, capsys, form, seen):
    log_to_stderr("info", form, "worker-1")
    logging.getLogger("freshet.x").info("hello")
    assert seen in capsys.readouterr().err


def test_access_log_contains_a_share_of_the_requests(caplog):
    caplog.set_level(logging.INFO, "freshet.access")
    access = AccessLog(0.25)
    for n in range(8):
        access("kserve", "ctr:infer", 200, 0.0015, f"id-{n}", 64)
    assert [r.getMessage() for r in caplog.records] == [
        "kserve ctr:infer 200 1.500 ms 64 bytes id-3", "kserve ctr:infer 200 1.500 ms 64 bytes id-7",
    ]  # fmt: skip
    assert caplog.records[0].fields["request_id"] == "id-3"


def test_process_killed_by_a_missing_page_logs_a_traceback(tmp_path):
    (tmp_path / "table").write_bytes(bytes(1 << 16))
    program = (
        "import mmap, os, sys; from freshet_serving.serving.telemetry.logs import enable_faulthandler\n"
        "enable_faulthandler()\n"
        "with open(sys.argv[1], 'r+b') as file: mapped = mmap.mmap(file.fileno(), 0)\n"
        "os.truncate(sys.argv[1], 0); mapped[1 << 15]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "table")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr


def raised(text):
    try:
        raise ValueError(text)
    except ValueError as error:
        return type(error), error, error.__traceback__


def paired(text):
    """The text with halves of a surrogate that stand side by side as one character: JSON knows no difference."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def written(formatter, *records):
    """What a handler writes of some records, as bytes that a file or a terminal gets."""
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", newline="")
    handler = RateLimitedHandler(stream, FakeClock())
    handler.setFormatter(formatter)
    for one in records:
        handler.handle(one)
    stream.flush()
    return stream.buffer.getvalue().decode()


@given(TEXT, TEXT, TEXT)
def test_record_is_one_line_without_control_characters(message, field, error):
    made = record("%s: %s", (message, field), fields={"path": field}, exc_info=raised(error))
    for formatter in (TextFormatter("worker-1"), JsonFormatter("worker-1")):
        line, end = written(formatter, made).partition("\n")[::2]
        assert end == ""
        assert line.isprintable()
        assert len(line.splitlines()) == 1
    told = json.loads(line)
    assert (told["message"], told["path"]) == (paired(f"{message}: {field}"), paired(field))
    assert told["exception"].endswith(paired(f"ValueError: {error}" if error else "ValueError"))


@given(TEXT)
def test_printable_text_is_written_unchanged(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    if text.isprintable():
        assert printable(text) == text


def test_access_log_line_has_a_fixed_number_of_fields(caplog):
    caplog.set_level(logging.INFO, "freshet.access")
    AccessLog(1)("http", "/v1/x 200 0.001 ms 5 bytes me\n", 404, 0.001, "'a b' 200", 9)
    assert caplog.records[0].getMessage() == (
        "http '/v1/x 200 0.001 ms 5 bytes me\\n' 404 1.000 ms 9 bytes \"'a b' 200\""
    )


class Flood:
    """A handler under a clock that is moved by hand, and the places that log."""

    def __init__(self):
        self.clock, self.stream, self.asked = FakeClock(), io.StringIO(), []
        self.handler = RateLimitedHandler(
            self.stream, self.clock, lambda delay_s, act: self.asked.append((delay_s, act))
        )
        self.handler.setFormatter(TextFormatter(""))

    def log(self, count=1, line=1, level=logging.WARNING, name="bad request"):
        for n in range(count):
            self.handler.handle(logging.LogRecord("freshet.x", level, __file__, line, f"{name} %d", (n,), None))

    def wait(self):
        """What was asked for is called when its time has come."""
        asked, self.asked = self.asked, []
        for delay_s, act in asked:
            self.clock.advance(delay_s)
            act()

    @property
    def lines(self):
        return [line.partition("freshet.x ")[2] for line in self.stream.getvalue().splitlines()]


def test_repeated_messages_are_limited_with_a_count():
    flood = Flood()
    flood.log(1000)
    assert flood.lines == [f"bad request {n}" for n in range(BURST)]
    assert [delay_s for delay_s, _ in flood.asked] == [INTERVAL_S]
    flood.wait()
    assert flood.lines[BURST:] == [f"bad request {BURST} ({1000 - BURST - 1} more like it)"]
    assert flood.asked == []
    flood.log(2, name="again")
    flood.wait()
    assert flood.lines[BURST + 1 :] == ["again 0 (1 more like it)"]


def test_messages_are_logged_at_once_again_after_a_pause():
    flood = Flood()
    flood.log(BURST)
    flood.clock.advance(BURST * INTERVAL_S)
    flood.log(BURST + 1)
    assert len(flood.lines) == 2 * BURST
    flood.wait()
    assert flood.lines[-1] == f"bad request {BURST}"


def test_other_messages_and_information_are_never_limited():
    flood = Flood()
    flood.log(1000)
    flood.log(line=2, name="another place")
    flood.log(100, level=logging.INFO, name="done")
    assert flood.lines[BURST:] == ["another place 0", *(f"done {n}" for n in range(100))]


def test_suppressed_messages_are_written_on_close():
    flood = Flood()
    flood.log(BURST + 5)
    flood.log(BURST + 1, line=2, name="other")
    flood.handler.close()
    assert flood.lines[-2:] == [f"bad request {BURST} (4 more like it)", f"other {BURST}"]


def test_failed_thread_start_is_retried_with_the_next_message():
    flood = Flood()

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    flood.handler._later, later = refuse, flood.handler._later
    flood.log(BURST + 2)
    flood.handler._later = later
    flood.log()
    flood.wait()
    assert flood.lines[-1].endswith("(2 more like it)")


def test_json_line_contains_the_number_of_suppressed_messages():
    flood = Flood()
    flood.handler.setFormatter(JsonFormatter(""))
    flood.log(BURST + 3)
    flood.wait()
    line = json.loads(flood.stream.getvalue().splitlines()[-1])
    assert (line["message"], line["more"]) == (f"bad request {BURST}", 2)


def test_suppressed_messages_are_written_after_the_interval(monkeypatch):
    monkeypatch.setattr(logs, "INTERVAL_S", 0.01)
    followed = threading.Event()

    class Watched(io.StringIO):
        def write(self, text):
            if "more like it" in text:
                followed.set()
            return super().write(text)

    handler = RateLimitedHandler(Watched())
    handler.setFormatter(TextFormatter(""))
    for _ in range(10 * BURST):
        handler.handle(record())
    assert followed.wait(60)


def test_exception_that_ends_a_thread_is_logged(root, capsys):
    log_to_stderr("info", "text")

    def fail():
        raise ValueError("a\nb")

    thread = threading.Thread(target=fail, name="worker\x1b")
    thread.start()
    thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert "ERROR freshet thread worker\\x1b ended with an error" in line
    assert line.endswith("ValueError: a\\nb")
