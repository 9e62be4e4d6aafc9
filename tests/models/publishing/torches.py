"""A Python that has PyTorch.

It is the one that runs the tests, the one that FRESHET_TORCH_PYTHON names, that of `make .venv/.torch`, or the
system's.
"""

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OWN, SYSTEM = str(ROOT / ".venv" / "torch" / "bin" / "python"), "/usr/bin/python3"
WHY = "needs PyTorch: make .venv/.torch, or FRESHET_TORCH_PYTHON=a Python that has PyTorch, numpy, xxhash and orjson"


@cache
def torch_python():
    """Its path; None where there is none."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for python in (os.environ.get("FRESHET_TORCH_PYTHON", ""), OWN, SYSTEM):
        if python and Path(python).exists():
            code = "import sys, torch, numpy, xxhash, orjson; sys.exit(sys.version_info < (3, 11))"
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
