"""Failed tests are run once more by `.ci/twice`: what fails twice fails, what passes is told."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNNER = """#!/usr/bin/env bash
cd "$(dirname "$0")"
mkdir -p .pytest_cache/v/cache
echo "$@ until=$FRESHET_TESTS_UNTIL" >>runs
[ "$(wc -l <runs)" -gt {failures} ] && exit 0
echo '{{{names}}}' >.pytest_cache/v/cache/lastfailed
exit 1
"""


@pytest.fixture
def tested_twice(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "twice", tmp_path / ".ci")

    def run(failures, failed_tests):
        names = ", ".join(f'"tests/test_a.py::test_{number}": true' for number in range(failed_tests))
        runner = tmp_path / "runner"
        runner.write_text(RUNNER.format(failures=failures, names=names))
        runner.chmod(0o755)
        environment = {"PATH": "/usr/bin:/bin", "FRESHET_TESTS_UNTIL": "7"}
        ended = subprocess.run(
            [tmp_path / ".ci" / "twice", runner, "test"], env=environment, capture_output=True, text=True, timeout=60
        )
        return ended, (tmp_path / "runs").read_text().splitlines()

    return run


def test_passing_tests_run_once(tested_twice):
    ended, runs = tested_twice(0, 0)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert runs == ["test until=7"]


def test_failed_test_runs_again_alone_and_without_a_deadline(tested_twice):
    ended, runs = tested_twice(1, 2)
    assert ended.returncode == 0
    assert runs == ["test until=7", "test TEST_ARGS=--last-failed --last-failed-no-failures none -n 0 until="]
    assert ended.stdout.splitlines() == [
        f"unsteady: failed once, then passed: tests/test_a.py::test_{number}" for number in range(2)
    ]


@pytest.mark.parametrize(("failures", "failed_tests", "runs_made"), [(2, 1, 2), (1, 4, 1), (9, 3, 2)])
def test_failure_stays_one(tested_twice, failures, failed_tests, runs_made):
    ended, runs = tested_twice(failures, failed_tests)
    assert ended.returncode != 0
    assert len(runs) == runs_made
    assert "unsteady" not in ended.stdout
