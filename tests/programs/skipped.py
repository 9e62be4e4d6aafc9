"""Tests that a run has skipped: `python -m tests.programs.skipped build/scrubbed.xml`, one a line for `pytest @FILE`.

`.ci/run` runs the fast tests where nothing but Python is installed, and these once more with everything. A test with
parameters is named without them: what they are is not always fit for a command line.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[2]


def node_of(dotted):
    """Return the node ID of a test of its dotted name: the file, then a class and a function, if it names them."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        path = Path(*parts[:count]).with_suffix(".py")
        if (ROOT / path).is_file():
            return "::".join([path.as_posix(), *parts[count:]])
    raise ValueError(f"expected the dotted name of a test under {ROOT.name}, got {dotted!r}")


def skipped_tests(report):
    """Return the node IDs of the tests that were skipped, sorted; report: of `pytest --junitxml`."""
    cases = ElementTree.parse(report).iter("testcase")
    # A module that skips as a whole is a case with its own name and no class.
    names = [f"{case.get('classname')}.{case.get('name')}" for case in cases if case.find("skipped") is not None]
    return sorted({node_of(name.partition("[")[0].strip(".")) for name in names})


if __name__ == "__main__":
    print(*skipped_tests(sys.argv[1]), sep="\n")
