"""Compile the kernels of the package, so that no start has to: python -m freshet_serving.processor.kernels.

Writes a bundle (kernels.code_store) for each feature level of x86-64, both at once, in a process of its own each; with
--here only for the level of this processor. Elsewhere kernels are compiled into the cache folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from freshet_serving.processor.kernels.bundling import import_kernels, write_bundle
from freshet_serving.processor.kernels.code_store import BUNDLES, LEVELS, supported_levels


def main() -> None:
    """Parse the command line and compile."""
    parser = argparse.ArgumentParser(prog="python -m freshet_serving.processor.kernels", description=__doc__)
    parser.add_argument("--into", type=Path, default=BUNDLES, help="folder of the bundles; the package's by default")
    parser.add_argument("--here", action="store_true", help="only for the feature level of this processor")
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.level:
        write_bundle(chosen.into, chosen.level)
        return
    levels = supported_levels()[:1] if chosen.here else list(LEVELS)
    if not levels or platform.machine() != "x86_64":
        import_kernels()
        return
    command = [sys.executable, "-m", "freshet_serving.processor.kernels", "--into", str(chosen.into.resolve())]
    # Features that the level's name implies, and no other; and the same bytes from the same sources.
    fixed = {"NUMBA_CPU_FEATURES": "", "PYTHONHASHSEED": "0"}
    processes = [
        subprocess.Popen([*command, "--level", level], env={**os.environ, **fixed, "NUMBA_CPU_NAME": level})
        for level in levels
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("kernels: not compiled")


if __name__ == "__main__":
    main()
