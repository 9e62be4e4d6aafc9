import importlib

import pytest

from loadtest.bench.__main__ import ON_DEMAND, SCENARIOS
from loadtest.bench.bench_report import markdown, summary, unmet
from loadtest.bench.harness import Result, Row
from loadtest.load.sides import Ratio
from loadtest.reports.report import keep, origin


def document(name="single", median=0.5, held=True):

    result = Result(name, f"Title of {name}")
    result.rows.append(Row(f"{name}: server / echo", Ratio(median, median, median + 0.1, 3), (">=", 0.45)))
    result.rows.append(Row("no goal", Ratio(2, 2, 2, 3)))
    result.checks.append(("no request | failed", held, "none did"))
    result.facts.append(("server", "100 requests/s"))
    result.refused["2 workers"] = "workers: 1 wanted"
    machine = {"cores": 2, "cpu": "a CPU", "python": "3.11", "load_average": 0.1}
    settings = {"rounds": 3, "seconds": 4.0, "table_rows": 100, "quick": False, "serve": ("--sessions", "2")}
    about = {"layouts": {"default": "workers=2 compute=inline"}, "origin": origin("bench", "BENCH_ARGS", ["--quick"])}
    return {**result.document(), "machine": machine, "settings": settings, **about}


def test_summary_lists_rows_with_goals():
    documents = [document(), document("group", 0.1, held=False)]
    lines = summary(documents).splitlines()
    assert len(lines) == 2 + 4
    assert "| single: server / echo | 0.50 | >= 0.45: met |" in lines
    assert "| group: server / echo | 0.10 | >= 0.45: NOT met |" in lines
    assert "| no request \\| failed | none did | NOT met |" in lines
    assert unmet(documents) == ["group: server / echo", "no request | failed"]
    page = markdown(documents)
    assert summary(documents) in page
    for text in (
        "Title of group",
        "Not run: 2 workers: workers: 1 wanted",
        "100 requests/s",
        "default: workers=2 compute=inline.",
    ):
        assert text in page
    assert '`make bench BENCH_ARGS="--quick"`, 20' in page


def test_result_replaces_only_the_last_of_its_scenario(tmp_path):
    found = []
    for result in (document("group"), document("single", 0.5), document("single", 0.6)):
        found = keep(tmp_path, "bench", result, SCENARIOS, markdown)
    assert [(r["name"], r["rows"][0]["ratio"]["median"]) for r in found] == [("single", 0.6), ("group", 0.5)]
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md"}


@pytest.mark.parametrize("name", [*SCENARIOS, *ON_DEMAND])
def test_every_scenario_exists(name):
    assert callable(importlib.import_module(f"loadtest.bench.scenarios.{name}").run)
