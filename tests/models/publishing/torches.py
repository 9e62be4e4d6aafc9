"""A Python that has PyTorch: the one that runs the tests, the one that FRESHET_TORCH_PYTHON names, or the system's."""

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SYSTEM = "/usr/bin/python3"
WHY = "needs PyTorch: Debian's python3-torch and python3-xxhash, or FRESHET_TORCH_PYTHON=a Python that has both"


@cache
def torch_python():
    """Its path; None where there is none."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for python in (os.environ.get("FRESHET_TORCH_PYTHON", ""), SYSTEM):
        if python and Path(python).exists():
            code = "import sys, torch, numpy, xxhash; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
                return python
    return None


def run_torch(module, *arguments):
    """Runs a module of the tests under it; returns what it printed, or skips."""
    if torch_python() is None:
        pytest.skip(WHY)
    command = [torch_python(), "-m", module, *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout
