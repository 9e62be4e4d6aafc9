"""Counts the structure of the working tree: `python -m tests.structure [--out loadtest/results/structure.md]`.

The third review of the code base counted too, in November 2026 at commit 8293e52: some by script, the ways of a
predict and of a delta by hand. REVIEW has its figures. Compare a figure of this program with an earlier one of this
program: the methods differ, and the code has grown since.

- Ways. The review followed the calls by hand and wrote down the files that a reader has to open. This program takes
  every file of which a function is called, seen by the profiler, in most of 25 steady repetitions: what a timer adds
  now and then is left out.
  - predict: the profiler does not see what a warm server skips (http_head, body_buffer and paths: the head of the
    request is in the head cache), nor what a model without a split, a user part or a sampled key does not need
    (traffic, routed_model, once, sketch). It sees helpers that the review left out: hashing, xxh3, pointers, json_text,
    generation, served_version, tensor_types, request_headers, holdings, patience, stats.
  - delta: the hand count names the stations. The profiler also sees their helpers (manifest, repository, version,
    keyring, memory, cores, sketch, tier, ...) and what every look of the watcher runs, news or not (readiness,
    refusals, routes). Not seen is the monitor that runs on a thread with a timer of its own (aftermath; what it calls,
    such as policy, comes and goes), and kernels that only compiled code calls.
  - object-store delta: the review counted 8 files on top of the folder's. Of these version_claim and eviction do not
    run for each delta, and place is mirrored_place here; troubles and atomic are seen in addition.
  - without extensions: the first two ways with FRESHET_EXTENSIONS=none, which is what the aims of the core are of.
- Subpackages: folders and flat modules directly below a top folder, as the review has them and tests/test_layers.py
  orders them. An arrow is a pair of them of which one imports the other; a module of a top folder itself is no end of
  one.
- Names: what modules outside of a subpackage import from it, without benchmarks, as the review has them. A name that an
  __init__ passes on counts once.
- One-word private class names: class names of one word that is not in tests/structure/field_words.txt. The review
  gave examples and no count.
- Help: lines on a terminal of 80 columns, as the review has them, and of 120. Options have been added since.
- Targets: those of the root Makefile. The issue said 54, the review 53; some have been added since.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from tests.structure import roads
from tests.structure.sources import Sources, help_lines

MOST_USED = 5
HELP_COLUMNS = (80, 120)
REVIEW = {
    "subpackages": "72",
    "arrows": "459",
    "a predict": "43",
    "a folder delta": "30",
    "an object-store delta": "38",
    "help, 80": "197",
    "targets": "54",
    "processor.package": "118",
    "processor.kernels": "61",
    "processor.watching": "49",
    "processor.repository.log": "33",
    "processor.backends": "37",
}


def row(name: str, key: str, figure: object) -> str:
    return f"| {name} | {figure} | {REVIEW.get(key, '')} |"


def page(sources: Sources, ways: dict[str, list[str] | str], lines_of_help: Mapping[int, int]) -> str:
    """
    Return the report as Markdown.

    Args:
        sources: the tree.
        ways: name -> the files on it, or why they were not taken.
        lines_of_help: columns of a terminal -> lines of `freshet serve --help`.
    """
    used = sorted(sources.used_names.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_USED]
    rows = [
        row("subpackages (folders and flat modules)", "subpackages", len(sources.subpackages)),
        row("folders with an `__init__.py`, at any depth", "", len(sources.folders)),
        row("arrows between subpackages", "arrows", len(sources.arrows)),
        *(
            row(f"files on the way of {name}", name, len(found) if isinstance(found, list) else found)
            for name, found in ways.items()
        ),
        *(row(f"names of `{name}` used elsewhere", name, len(names)) for name, names in used),
        row("one-word private class names", "", len(sources.private_words)),
        row("one-word class names", "", len(sources.one_word_classes)),
        *(
            row(f"lines of `freshet serve --help`, {columns} columns", f"help, {columns}", lines)
            for columns, lines in lines_of_help.items()
        ),
        row("targets of the root Makefile", "targets", len(sources.targets())),
        *(row(f"lines of Python in `{name}/`", "", lines) for name, lines in sorted(sources.lines().items())),
    ]
    lists = [
        f"## Files on the way of {name}\n\n" + "\n".join(f"- {file}" for file in found)
        for name, found in ways.items()
        if isinstance(found, list)
    ]
    text = [
        "# The structure of the code base",
        "The head of `tests/structure/__main__.py` says how each figure is counted, and why the review's differ.",
        "\n".join(["| figure | here | review, by its own method |", "|---|--:|--:|", *rows]),
        f"## One-word private class names\n\n{', '.join(sources.private_words) or 'none'}",
        *lists,
    ]
    return "\n\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    out = parser.parse_args().out
    ways = {
        "a predict": roads.predict(),
        "a folder delta": roads.folder_delta(),
        "an object-store delta": roads.object_delta(),
        **{f"{name}, without extensions": files for name, files in roads.of_core().items()},
    }
    text = page(Sources(roads.ROOT), ways, {columns: help_lines(roads.ROOT, columns) for columns in HELP_COLUMNS})
    print(text, end="")
    if out is not None:
        out.write_text(text)


if __name__ == "__main__":
    main()
