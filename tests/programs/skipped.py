"""
The test files in which a run has skipped a test: `python -m tests.programs.skipped build/scrubbed.xml`.

`.ci/run` runs the fast tests where nothing but Python is installed, and these files once more with everything.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]


def file_of(dotted):
    """Return the file of a test, whose dotted name can end with a class and a function."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        path = Path(*parts[:count]).with_suffix(".py")
        if (ROOT / path).is_file():
            return path.as_posix()
    raise ValueError(f"expected the dotted name of a test under {ROOT.name}, got {dotted!r}")


def skipped_files(report):
    """
    Return the files, in their order.

    Args:
        report: what pytest has written with `--junitxml`.
    """
    cases = ElementTree.parse(report).iter("testcase")
    # A module that skips as a whole is a case with its own name and no class.
    names = [f"{case.get('classname')}.{case.get('name')}" for case in cases if case.find("skipped") is not None]
    return sorted({file_of(name.partition("[")[0].strip(".")) for name in names})


if __name__ == "__main__":
    print(*skipped_files(sys.argv[1]))
