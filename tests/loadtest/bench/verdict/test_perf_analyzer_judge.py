import json

import pytest

from loadtest.bench.verdict.perf_analyzer_judge import PerfAnalyzer, read_report, write_rows
from loadtest.load.launch import CommandFailed

REPORT = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,p50 latency,p90 latency,p95 latency,p99 latency
32,64000,20,3000,30500,35000,38000,41250
"""


def test_report_counts_rows_and_microseconds():
    assert read_report(REPORT, 64) == {"requests/s": 1000.0, "p50 ms": 30.5, "p99 ms": 41.25}


def test_rows_are_written_in_the_perf_analyzer_format(tmp_path):
    rows = json.loads(write_rows(tmp_path / "rows.json", 1000).read_text())["data"]
    assert len(rows) == 1024
    assert {name: (tensor["shape"], len(tensor["content"])) for name, tensor in rows[0].items()} == {
        "ids": ([26], 26),
        "floats": ([13], 13),
    }


def test_failure_reason_is_its_error_output(tmp_path):
    program = tmp_path / "perf_analyzer"
    program.write_text("#!/bin/sh\necho failed to get model metadata >&2\nexit 99\n")
    program.chmod(0o755)
    with pytest.raises(CommandFailed, match="exit code 99: failed to get model metadata"):
        PerfAnalyzer(str(program), "", 1.0).measure(1, "http", 1, 1, tmp_path)
