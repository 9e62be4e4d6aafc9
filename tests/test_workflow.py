"""What runs elsewhere is what runs here: the workflow of CI, and the hooks before a commit."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import pytest_runtest_setup
from tests.programs.skipped import skipped_tests

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
TOOLS = ROOT / ".venv" / "tools" / "bin"


@pytest.mark.parametrize(
    "command",
    [
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", WORKFLOW),
        ("check-jsonschema", "--builtin-schema", "custom.github-workflows-require-timeout", WORKFLOW),
        ("pre-commit", "validate-config", HOOKS),
    ],
    ids=["schema", "timeouts", "hooks"],
)
@pytest.mark.long
def test_workflow_passes_its_linter(command):
    if not TOOLS.exists():
        pytest.skip("what checks it is not here: make .venv/.tools")
    done = subprocess.run([TOOLS / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflow_has_only_read_permission_and_keeps_no_credentials():
    text = WORKFLOW.read_text()
    assert text.count("permissions:") == 1
    assert re.search(r"^permissions:\n  contents: read\n\n", text, re.MULTILINE)
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert "secrets." not in text
    # What a pull request calls itself would be run.
    assert "github.event" not in text


def test_actions_are_from_github_at_a_major_version():
    used = re.findall(r"uses: (\S+)", WORKFLOW.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)] == []


def test_workflow_runs_the_same_checks_as_ci():
    assert "run: .ci/run" in WORKFLOW.read_text()


def test_hooks_use_no_network_and_name_existing_files():
    text = HOOKS.read_text()
    assert re.findall(r"repo: (\S+)", text) == ["local"]
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}
    named = re.findall(r"tests/\w+\.py", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_skipped_tests_are_listed_without_parameters(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.test_workflow" name="test_of[a.b]"><skipped message="no npm" /></testcase>
        <testcase classname="tests.test_workflow" name="test_other"><skipped message="no npm" /></testcase>
        <testcase classname="" name="tests.e2e.test_onnx_live"><skipped message="no PyTorch" /></testcase>
        <testcase classname="tests.test_layers" name="test_imports" />
        </testsuite></testsuites>"""
    )
    assert skipped_tests(report) == [
        "tests/e2e/test_onnx_live.py",
        "tests/test_workflow.py::test_of",
        "tests/test_workflow.py::test_other",
    ]


def test_tests_after_the_given_moment_are_skipped(monkeypatch):
    monkeypatch.setenv("FRESHET_TESTS_UNTIL", "1e12")
    pytest_runtest_setup()
    monkeypatch.setenv("FRESHET_TESTS_UNTIL", "1e9")
    with pytest.raises(pytest.skip.Exception, match="the time for tests is over"):
        pytest_runtest_setup()
