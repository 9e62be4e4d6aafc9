"""The lines and branches that tests ran, by subpackage: `python -m tests.programs.covered build/coverage.json PAGE`.

Reads what `coverage json` writes. Bodies that Numba compiles are not counted (pyproject.toml, tool.coverage.report).
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

AIM = 95.0  # per cent of lines
WORST = 30  # as many modules are listed
FIELDS = ("num_statements", "missing_lines", "num_branches", "missing_branches")


def share(count, missing):
    """Return how much of `count` is not missing, in per cent; all of nothing."""
    return 100.0 * (count - missing) / count if count else 100.0


def row(name, sums):
    lines, unrun, branches, untaken = sums
    return f"| {name} | {lines} | {share(lines, unrun):.1f} | {branches} | {share(branches, untaken):.1f} |"


def table(head, rows):
    return "\n".join([f"| {head} | lines | run, % | branches | taken, % |", "|---|--:|--:|--:|--:|", *rows, ""])


def page(files):
    """Return the report as Markdown; files: a module's "summary" by its path, as `coverage json` has them."""
    modules = {path: [summary[field] for field in FIELDS] for path, summary in files.items()}
    packages, total = defaultdict(lambda: [0] * 4), [0] * 4
    for path, sums in modules.items():
        package = "/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]
        packages[package] = [a + b for a, b in zip(packages[package], sums)]
        total = [a + b for a, b in zip(total, sums)]
    worst = sorted(modules.items(), key=lambda item: -item[1][1])[:WORST]
    said = f"{share(total[0], total[1]):.1f} % of {total[0]} lines and {share(total[2], total[3]):.1f} % of {total[2]}"
    return "\n".join(
        [
            "# Lines and branches that tests run",
            "",
            f"{said} branches, by `make test` and `make test-long`; the aim is {AIM:.0f} % of lines. Functions that",
            "Numba compiles are not counted. Made by `make -C loadtest coverage`.",
            "",
            table("package", [row(name, sums) for name, sums in sorted(packages.items())]),
            "Where most lines are left:",
            "",
            table("module", [row(path, sums) for path, sums in worst]),
        ]
    )


def main(report, into):
    files = json.loads(Path(report).read_text())["files"]
    text = page({path: file["summary"] for path, file in files.items()})
    Path(into).write_text(text)
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
