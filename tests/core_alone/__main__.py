"""`make core-alone`: a copy of the tree without extensions passes the core's tests and serves a plain package.

The copy is made of hard links in build/core-alone; nothing in it is written to. Its tests are those of the engine and
the server that reach no extension by what they import (tests.affected). What is printed last are the files and lines
that an engine and a server have loaded once they have answered a predict and followed a delta.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.affected.changes import here, is_file
from tests.affected.closure import is_of_extension

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build" / "core-alone"
KERNELS = "processor/kernels/compiled"
CORE = ("tests/processor/", "tests/serving/")


def left_out(path: str) -> bool:
    """Return whether a file belongs to an extension: its code, or its tests. The folder where they are found stays."""
    return is_of_extension(path.removeprefix("tests/")) or path.startswith("tests/extensions/")


def copied(to: Path) -> Path:
    """Link the working tree to a folder, extensions left out, with its compiled kernels."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".", ":!loadtest/results"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    kernels = [file.relative_to(ROOT).as_posix() for file in (ROOT / KERNELS).glob("*")]
    for name in filter(None, [*listed.split("\0"), *kernels]):
        source = ROOT / name
        if left_out(name) or not (is_file(source) or source.is_symlink()):
            continue
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(source, to / name, follow_symlinks=False)
    return to


def core_tests() -> list[str]:
    """Return the tests of the engine and the server that reach no extension."""
    tests = [test for test in here().tests if test.startswith(CORE) and not left_out(test)]
    return [test for test in tests if not any(left_out(node) for node in here().closure([test]))]


def main() -> int:
    """Return 0 if the core's tests pass and a server serves."""
    parser = argparse.ArgumentParser(prog="make core-alone", description=__doc__.partition("\n")[0])
    parser.add_argument("--story", action="store_true", help="only serve, and count what is loaded")
    story = parser.parse_args().story
    environment = {**os.environ, "PYTHONPATH": str(copied(COPY)), "PYTHONDONTWRITEBYTECODE": "1"}
    if not story:
        tests = core_tests()
        print(f"{len(tests)} test files of the core", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not long"]
        done = subprocess.run([*command, "-p", "no:cacheprovider", *tests], cwd=COPY, env=environment)
        if done.returncode:
            return done.returncode
    return subprocess.run([sys.executable, "-m", "tests.core_alone.story"], cwd=COPY, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
