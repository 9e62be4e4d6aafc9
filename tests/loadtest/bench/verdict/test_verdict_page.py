import json

from loadtest.bench.verdict.verdict_page import JUDGES, page
from tests.loadtest.bench.verdict.test_loadgen_judge import DELTAS, results, run


def test_unrun_judge_is_named_with_its_command(tmp_path):
    text = page(tmp_path)
    for judge in JUDGES:
        assert f"Not run yet: `make -C loadtest {judge.name}`." in text


def test_judge_output_is_shown_with_its_command_and_machine(tmp_path):
    runs = {"http-server": run(True, 9.2), "http-server-deltas": run(True, 8.9, **DELTAS)}
    (tmp_path / "verdict-loadgen.json").write_text(json.dumps(results(runs)))
    text = page(tmp_path)
    assert "- KServe v2, binary, HTTP, p99 within 60 ms: VALID at 9.2" in text
    assert "`make -C loadtest verdict-loadgen`, 2026-11-23, 2 cores of a processor" in text
    assert "Not run yet: `make -C loadtest verdict-loadgen`" not in text
