"""A plugin of pytest: attributes the processor time of a run to test files, their fixtures and their tests.

    python -m pytest -p tests.programs.costs --costs build/costs ... && python -m tests.programs.costs build/costs PAGE

Counted are the seconds of the process that runs the tests (all its threads) and of the processes that it started, from
the moment it has waited for them: a server that a module shares is counted where the module stops it. What was started
and never waited for is not counted. With xdist each worker writes a file of its own into the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time  # by name: tests put clocks of their own into the module

import pytest

FILES = 50  # as many of the most expensive files stand on the page
PARTS = 40  # and as many of the most expensive fixtures and tests


def used():
    """Return the processor seconds of this process and of the children it has waited for."""
    children = getrusage(RUSAGE_CHILDREN)
    return process_time(), children.ru_utime + children.ru_stime


@dataclass
class Meter:
    """What a stretch of the run cost, less what the stretches inside it cost.

    open: (file, part) of each open stretch, the innermost last. used: gives the processor seconds of this process and
    of its children so far. last: what it gave at the last charge.
    """

    path: Path
    open: list = field(default_factory=list)
    used: Callable = used
    last: tuple | None = None
    spent: dict = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0, 0]))
    started: int = 0

    def __post_init__(self):
        if self.last is None:
            self.last = self.used()

    def charge(self):
        """Charge what was used since the last call to the innermost open stretch."""
        now, place = self.used(), self.open[-1] if self.open else ("", "between tests")
        row = self.spent[place]
        row[0] += now[0] - self.last[0]
        row[1] += now[1] - self.last[1]
        row[2] += self.started
        self.last, self.started = now, 0

    @contextmanager
    def within(self, file, part):
        """A stretch of the run."""
        self.charge()
        self.open.append((file, part))
        try:
            yield
        finally:
            self.charge()
            self.open.pop()

    def audit(self, event, _):
        if event == "subprocess.Popen":
            self.started += 1

    def write(self):
        self.charge()
        lines = [json.dumps([*place, *row]) for place, row in self.spent.items()]
        self.path.write_text("\n".join(lines) + "\n")


class Costs:
    def __init__(self, meter):
        self.meter = meter

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        with self.meter.within(collector.nodeid.split("::")[0], "(import)"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        file = request.node.nodeid.split("::")[0] if fixturedef.scope in ("function", "class", "module") else ""
        with self.meter.within(file, f"fixture {fixturedef.argname} ({fixturedef.scope})"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        file, _, test = item.nodeid.partition("::")
        with self.meter.within(file, test.split("[")[0]):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item, nextitem):
        try:
            with self.meter.within(item.nodeid.split("::")[0], "(teardown)"):
                return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                # So that a run which ends early, or still goes on, can be read.
                self.meter.write()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self):
        self.meter.write()


def pytest_addoption(parser):
    parser.addoption("--costs", metavar="FOLDER", help="write there where the processor time goes")


def pytest_configure(config):
    folder = config.getoption("--costs")
    controls = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if folder is None or controls:
        return
    worker = getattr(config, "workerinput", {}).get("workerid", "main")
    Path(folder).mkdir(parents=True, exist_ok=True)
    meter = Meter(Path(folder, f"{worker}.jsonl"), last=(0.0, 0.0))
    sys.addaudithook(meter.audit)
    config.pluginmanager.register(Costs(meter), "costs-of-tests")


def read(folder):
    """Return {(file, part): [own seconds, children's seconds, processes started]} of all workers together."""
    spent = defaultdict(lambda: [0.0, 0.0, 0])
    for path in sorted(Path(folder).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            file, part, *row = json.loads(line)
            spent[file, part] = [a + b for a, b in zip(spent[file, part], row)]
    return spent


def table(head, rows):
    """Return a table in Markdown: names, then seconds and counts."""
    return "\n".join([f"| {head} | seconds | of them in children | processes |", "|---|--:|--:|--:|", *rows, ""])


def line(name, row):
    return f"| {name} | {row[0] + row[1]:.1f} | {row[1]:.1f} | {row[2]} |"


def page(spent):
    files, folders, total = defaultdict(lambda: [0.0, 0.0, 0]), defaultdict(lambda: [0.0, 0.0, 0]), [0.0, 0.0, 0]
    for (file, _), row in spent.items():
        name = file or "(shared by several files)"
        folder = "/".join(file.split("/")[:2]) if file.count("/") > 1 else name
        for sums, key in ((files, name), (folders, folder)):
            sums[key] = [a + b for a, b in zip(sums[key], row)]
        total = [a + b for a, b in zip(total, row)]
    ranked = {
        name: sorted(sums.items(), key=lambda i: -i[1][0] - i[1][1])
        for name, sums in (("folders", folders), ("files", files), ("parts", spent))
    }
    return "\n".join(
        [
            "# Where the processor time of `make test` goes",
            "",
            f"{total[0] + total[1]:.0f} s of processor time, {total[1]:.0f} s of them in {total[2]} processes that"
            f" tests started. Python {sys.version.split()[0]}, {os.cpu_count()} cores."
            " Made by `make -C loadtest costs`.",
            "",
            table("folder", [line(*i) for i in ranked["folders"][:FILES]]),
            table("file", [line(*i) for i in ranked["files"][:FILES]]),
            table("fixture or test", [line(_explained(f"{f} {p}"), row) for (f, p), row in ranked["parts"][:PARTS]]),
        ]
    )


def _explained(name):
    """Return the name of a part, with the reason why it is worth its time if there is one."""
    reasons = tomllib.loads(Path(__file__).with_name("cost_reasons.toml").read_text())
    return f"{name}: {reasons[name]}" if name in reasons else name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("page")
    args = parser.parse_args()
    Path(args.page).write_text(page(read(args.folder)))
