"""The reports about the tests themselves: where their time goes, and which lines they run."""

import json

from tests.programs import costs, covered


def test_time_is_charged_to_the_innermost_span(tmp_path):
    clock = iter([(0.0, 0.0), (1.0, 0.0), (3.0, 0.5), (6.0, 0.5), (10.0, 2.5), (10.0, 2.5)])
    meter = costs.Meter(tmp_path / "gw0.jsonl", used=lambda: next(clock))
    file = "tests/a/test_b.py"
    with meter.within(file, "test_c"), meter.within(file, "fixture d (module)"):
        meter.audit("subprocess.Popen", ())
    meter.write()
    assert costs.read(tmp_path) == {
        ("", "between tests"): [1.0, 0.0, 0],
        ("tests/a/test_b.py", "test_c"): [6.0, 2.5, 0],
        ("tests/a/test_b.py", "fixture d (module)"): [3.0, 0.0, 1],
    }


def test_costs_of_workers_are_summed_and_ranked(tmp_path):
    for worker, seconds in (("gw0", 2.0), ("gw1", 3.0)):
        rows = [["tests/a/test_b.py", "test_c", seconds, 1.0, 1], ["tests/test_d.py", "(import)", 0.5, 0.0, 0]]
        (tmp_path / f"{worker}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    text = costs.page(costs.read(tmp_path))
    assert "8 s of processor time, 2 s of them in 2 processes" in text
    assert "| tests/a | 7.0 | 2.0 | 2 |\n| tests/test_d.py | 1.0 | 0.0 | 0 |" in text
    assert "| tests/a/test_b.py test_c | 7.0 | 2.0 | 2 |" in text


def test_coverage_is_summed_by_package():
    def summary(lines, unrun, branches, untaken):
        return dict(zip(covered.FIELDS, (lines, unrun, branches, untaken)))

    files = {
        "processor/chain/a.py": summary(60, 6, 10, 5),
        "processor/chain/b.py": summary(40, 4, 0, 0),
        "processor/c.py": summary(100, 0, 0, 0),
    }
    text = covered.page(files)
    assert "95.0 % of 200 lines and 50.0 % of 10\nbranches" in text.replace(" branches,", "\nbranches,")
    assert "| processor | 100 | 100.0 | 0 | 100.0 |\n| processor/chain | 100 | 90.0 | 10 | 50.0 |" in text
    assert text.index("| processor/chain/a.py |") < text.index("| processor/chain/b.py |")
