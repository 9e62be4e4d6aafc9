import shutil

import pytest

from loadtest.load import h2load, wrk
from loadtest.load.launch import CommandFailed

OUTPUT = """starting benchmark...
Warm-up phase is over for thread #0.
finished in 3.00s, 1234.67 req/s, 190.52KB/s
requests: 3704 total, 3736 started, 3704 done, {good} succeeded, {failed} failed, 0 errored, 0 timeout
status codes: 3704 2xx, 0 3xx, 0 4xx, 0 5xx
"""


def test_rate_and_count_are_parsed():
    assert h2load.parse(OUTPUT.format(good=3704, failed=0)) == h2load.H2LoadRun(3704, 1234.67)


@pytest.mark.parametrize("output", ["", OUTPUT.format(good=0, failed=0), OUTPUT.format(good=3700, failed=4)])
def test_run_without_replies_or_with_failures_has_no_figures(output):
    with pytest.raises(CommandFailed):
        h2load.parse(output)


def test_missing_program_gives_one_line_on_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandFailed, match="nghttp2-client"):
        wrk.available("h2load")
