import json
import re
import socket

import pytest

from loadtest.live.run import RunSettings, write_report
from tests.loadtest.reports.summaries import summary


def test_the_report_names_neither_host_nor_path(tmp_path):
    page = write_report(summary(), tmp_path, "night")
    text = page.read_text() + (tmp_path / "night.json").read_text()
    assert str(tmp_path) not in text
    assert socket.gethostname() not in re.findall(r"[\w.-]+", text)


def test_a_report_is_a_page_its_figures_and_two_pictures(tmp_path):
    s = summary()
    page = write_report(s, tmp_path / "results", "night")
    assert page.name == "night.md"
    assert json.loads((tmp_path / "results" / "night.json").read_text())["requests"] == 1000
    for name in ("night-latency.png", "night-freshness.png"):
        assert (tmp_path / "results" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options", [{"seconds": 1}, {"users": 0}, {"delta_every_s": 61.0}, {"json_share": 1.5}, {"publish": "mail"}]
)
def test_settings_that_make_no_sense_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RunSettings(**options)
