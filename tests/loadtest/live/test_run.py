import contextlib
import json
import os
import re
import socket
import time

import pytest

from loadtest.live import run as run_module
from loadtest.live.run import RunSettings, name_of, run, write_report
from loadtest.load.launch import CommandFailed, RunningServer
from loadtest.load.measurements import Measurements
from tests.loadtest.live.deltas import write_deltas
from tests.loadtest.packages import write_package
from tests.loadtest.reports.summaries import summary


def small_version(repository, deltas, table_rows, delta_rows, count):
    deltas.mkdir()
    write_deltas(deltas)
    return write_package(repository)


def test_report_names_neither_host_nor_path(tmp_path):
    page = write_report(summary(), tmp_path, "night")
    text = page.read_text() + (tmp_path / "night.json").read_text()
    assert str(tmp_path) not in text
    assert socket.gethostname() not in re.findall(r"[\w.-]+", text)


def test_report_is_one_page_with_its_figures(tmp_path):
    page = write_report(summary(), tmp_path / "results", "night")
    assert page.name == "night.html"
    assert json.loads((tmp_path / "results" / "night.json").read_text())["requests"] == 1000
    assert {path.name for path in page.parent.iterdir()} == {"night.html", "night.json"}


def test_report_is_named_after_the_requested_rate():
    assert name_of(RunSettings()) == "loadtest"
    assert name_of(RunSettings(rate=150.0)) == "loadtest-150-a-second"


def test_server_crash_during_the_run_is_stated_in_the_report(tmp_path, monkeypatch):
    """Everything but the server and the load generator, which a stand-in kills with the load half done."""

    @contextlib.contextmanager
    def dying(repository, log, options):
        log.write_text("freshet: ready in 0.10 s http=a admin=b workers=2 models=bench@1.0 compute=inline\n")
        yield RunningServer(1, 2, 0.1, os.getpid(), 3, log)
        raise CommandFailed(f"freshet serve: exit code -9\n{tmp_path}/models.py")

    def half(settings, server, root, publish_folder):
        load = Measurements(time.monotonic())
        load.request("kserve", load.start_s + 0.5, 0.01)
        load.request("kserve", load.start_s + 1.5, 0.01, "status none")
        (root / run_module.RECORD).write_text(json.dumps(load.document()))

    monkeypatch.setattr(run_module, "prepare", small_version)
    monkeypatch.setattr(run_module, "serving", dying)
    monkeypatch.setattr(run_module, "_locust", half)

    found = run(RunSettings(seconds=2, rows=2), lambda line: None, ["--seconds", "2"])

    assert (found["error"], found["requests"]) == ("freshet serve: exit code -9", 2)
    assert found["faults"]["status none"] == 1
    assert found["layout"] == "workers=2 compute=inline"
    text = write_report(found, tmp_path / "results", "half").read_text()
    assert "FAILED" in text
    assert "It ended before its time: freshet serve: exit code -9" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    "options", [{"seconds": 1}, {"users": 0}, {"delta_every_s": 61.0}, {"json_share": 1.5}, {"publish": "mail"}]
)
def test_contradictory_settings_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RunSettings(**options)
