"""What a benchmark needs from outside: one line says what is missing, with exit code 2, before anything is measured."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NoReturn


def refuse(line: str) -> NoReturn:
    """End this process: nothing was measured, for the reason that the line gives."""
    print(line, file=sys.stderr)
    raise SystemExit(2)


def movielens(data: Path) -> Path:
    """Return the folder of MovieLens-1M among all data; refuse if it is not there."""
    folder = data / "ml-1m"
    if not folder.is_dir():
        refuse(f"--data: expected a folder that has ml-1m, got {data}: name it there or in FRESHET_DATA")
    return folder


def program(name: str) -> None:
    """Refuse unless a program is installed."""
    if shutil.which(name) is None:
        refuse(f"{name} is not installed: install it, or put it on PATH")


def interpreter(path: Path, advice: str) -> None:
    """
    Refuse unless a Python of its own environment is there.

    Args:
        path: The interpreter.
        advice: How to get it.
    """
    if not path.is_file():
        refuse(f"{path.name} of another environment does not exist: {advice}")
