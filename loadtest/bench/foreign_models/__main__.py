"""`make -C loadtest models`: builds, imports and serves the eighty models; loadtest/results/models.md.

`--list free-lengths`: those of PyTorch over histories of free length, by both exporters; models-free-lengths.md.

What is done lies in build/models and is not done again: `--again` tries all models again, as after a change of Freshet.
`--only` takes families and models; the page is written of all that lies there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.bench.foreign_models.built import read_built
from loadtest.bench.foreign_models.catalogue import (
    AIMS,
    LISTS,
    MODELS,
    ForeignEntry,
    NoEnvironment,
    entries,
    python_of,
)
from loadtest.bench.foreign_models.models_page import page
from loadtest.bench.foreign_models.trial import FAILED, UNBUILT, try_model
from loadtest.reports.report import machine, origin

ROOT = Path(__file__).parents[3]
WORK, VENVS = ROOT / "build" / "models", ROOT / "build" / "models-venvs"
RESULTS = ROOT / "loadtest" / "results"
BUILDERS = Path(__file__).parent / "builders" / "__main__.py"
BUILD_S = 600
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.foreign_models", description=__doc__)
    parser.add_argument("--list", choices=sorted(LISTS), default=MODELS, help="the list of models")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="families and models")
    parser.add_argument("--again", action="store_true", help="try models again that are done")
    options = parser.parse_args()
    console, listed = Console(), entries(options.list)
    names = {entry.name for entry in listed} | {entry.family for entry in listed}
    if unknown := sorted(set(options.only) - names):
        parser.error(f"--only: expected families and models of {LISTS[options.list].name}, got {', '.join(unknown)}")
    asked = [entry for entry in listed if not options.only or {entry.name, entry.family} & set(options.only)]
    kept = {entry.name: WORK / entry.name / "result.json" for entry in listed}
    for number, entry in enumerate(asked, 1):
        path = kept[entry.name]
        if options.again or not path.exists():
            result = build(entry)
            if not result:
                # A crash of this process is the model's result: the next run goes on behind it.
                path.write_text(json.dumps({"status": FAILED, "message": "the process that served it ended"}))
                result = tried(entry)
            path.write_text(json.dumps(result))
        result = json.loads(path.read_text())
        line = f"{number}/{len(asked)} {entry.name}: {result['status']} {result['message']}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    results = {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    about = {"machine": machine(), "origin": origin("-C loadtest models", "ARGS", sys.argv[1:]), "results": results}
    name = MODELS if options.list == MODELS else f"{MODELS}-{options.list}"
    RESULTS.joinpath(f"{name}.md").write_text(page(listed, AIMS[options.list], about))
    return 0


def build(entry: ForeignEntry) -> dict[str, Any]:
    """Build a model if that is not done; return the result of one that cannot be built, or nothing."""
    folder = WORK / entry.name
    if read_built(folder / "built"):
        return {}
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "built").mkdir(parents=True)
    try:
        python = python_of(VENVS, entry.environment)
    except NoEnvironment as error:
        return unbuilt(str(error))
    command = [str(python), str(BUILDERS), str(folder / "built"), entry.builder, entry.name]
    try:
        done = subprocess.run(command, cwd=ROOT, env=CLEAN, capture_output=True, text=True, timeout=BUILD_S)
    except subprocess.TimeoutExpired:
        return unbuilt(f"not done in {BUILD_S} s")
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"ended with {done.returncode}"]
    return unbuilt(lines[-1]) if done.returncode else {}


def tried(entry: ForeignEntry) -> dict[str, Any]:
    try:
        return try_model(WORK / entry.name, entry.name)
    except Exception as error:
        # Whatever a model does, the others are tried.
        return {"status": FAILED, "message": f"{type(error).__name__}: {error}"[:300]}


def unbuilt(reason: str) -> dict[str, Any]:
    return {"status": UNBUILT, "message": re.sub(r"/\S*/", "", reason)[:300]}


if __name__ == "__main__":
    sys.exit(main())
