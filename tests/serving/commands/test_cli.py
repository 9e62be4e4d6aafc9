import subprocess
import sys

import pytest

from freshet_serving.processor.errors import Refused
from freshet_serving.serving.commands import cli


def test_command_line_mistake_gives_one_line_and_code_2():
    command = [sys.executable, "-m", "freshet_serving", "serve", "--repository", "r", "--workers", "-1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == "freshet: workers: expected 0 (what is best here) to 256, got -1\n"


def test_version_refused_by_a_gate_gives_one_line_and_code_3(monkeypatch, capsys):
    def refused(**_):
        raise Refused("version 5 of 'ctr' was refused by the gate")

    monkeypatch.setattr(cli, "app", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert capsys.readouterr().err == "freshet: version 5 of 'ctr' was refused by the gate\n"


def test_help_and_lists_load_no_kernels():
    code = (
        "import sys, freshet_serving.serving.commands.cli, freshet_serving.processor.versions.version_actions\n"
        "print([name for name in ('numba', 'scipy', 'freshet_serving.serving.server') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"
