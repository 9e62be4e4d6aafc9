"""Build the wheel of freshet-serving with compiled kernels: setuptools, and one step before it (PEP 517).

What compiles kernels is needed for a wheel alone, not for a source distribution or an editable installation, where
`make install` compiles them. Where it is missing (a build without isolation) the wheel holds none, and the first start
compiles them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

COMPILERS = ("numba", "llvmlite", "numpy", "rich", "xxhash")
"""What compiling kernels imports, of the dependencies that pyproject.toml names."""

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what pip installs before it builds a wheel."""
    dependencies = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    needed = [line for line in dependencies if line.startswith(COMPILERS)]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Compile the kernels into the tree, build the wheel and return its name."""
    if all(find_spec(library) for library in COMPILERS):
        path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "freshet_serving.processor.kernels"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    else:
        print("kernels are not compiled: numba is not installed where this wheel is built", file=sys.stderr)
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
