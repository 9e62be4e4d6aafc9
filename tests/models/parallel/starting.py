"""Processes under mpiexec, for tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATIENCE_S = 300


def run_ranks(processes, code, *arguments):
    """Runs code in so many; the exit status, and what they wrote."""
    from freshet_serving.models.parallel.mpi_launch import mpiexec

    command = [mpiexec(), "-n", str(processes), sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, done.stdout + done.stderr
