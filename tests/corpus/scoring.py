"""Scores entries at every moment, with whatever engine is imported.

    python -m tests.corpus.scoring --out scores.json [--frozen FOLDER] [ENTRY ...]

writes every score to the bit, for tests.corpus.compare. A commit that has this module scores with its own; what it
writes has one form for all of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.corpus import adapter
from tests.corpus.entry import FOLLOWED, FROZEN, OPENED, Entry, Moment, Request, Scores, entries

LIBRARIES = ("numpy", "numba", "onnxruntime", "jaxlib", "openvino", "tensorflow-cpu")


@dataclass(frozen=True)
class Scored:
    """The scores of one request, FOLLOWED or OPENED (tests.corpus), and what computed them."""

    moment: Moment
    request: Request
    how: str
    computes: str
    scores: Scores


def scored(entry: Entry, aside: Path) -> Iterator[Scored]:
    """Every request at every moment, in both ways; `aside` is an empty folder.

    Raises AssertionError where another generation answers than did when the entry was written.
    """
    requests = entry.requests()
    followed = entry.lay_out(aside / FOLLOWED, entry.moments[0])
    with adapter.opened(followed, entry.keys) as processor:
        for n, moment in enumerate(entry.moments):
            if n:
                entry.arrive(followed, moment)
                adapter.follow(processor)
            yield from _scored_by(processor, entry, moment, requests, FOLLOWED)
            with adapter.opened(entry.lay_out(aside / str(n), moment), entry.keys) as anew:
                yield from _scored_by(anew, entry, moment, requests, OPENED)


def _scored_by(
    processor: adapter.Processor, entry: Entry, moment: Moment, requests: list[Request], how: str
) -> Iterator[Scored]:
    computes = adapter.computes(processor, entry.model)
    for request in requests:
        generation, scores = adapter.ask(processor, entry.model, request.inputs, request.way)
        where = f"{entry.name}, {moment.name}, {how}: generation"
        assert generation == moment.generation, f"{where}: expected {moment.generation}, got {generation}"
        yield Scored(moment, request, how, computes, scores)


def lacking(entry: Entry) -> list[str]:
    """The modules that scoring an entry takes and that are not installed."""
    return [name for name in entry.needs if importlib.util.find_spec(name) is None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.scoring", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file of scores, as JSON")
    parser.add_argument("--frozen", type=Path, default=FROZEN, help="the folder of entries")
    parser.add_argument("entry", nargs="*", help="their names; all of them by default")
    arguments = parser.parse_args()
    # That executables are left out, and compiled anew, is what the entries say.
    logging.getLogger("freshet.executables").setLevel(logging.ERROR)
    by_name = {entry.name: entry for entry in entries(arguments.frozen)}
    if unknown := sorted(set(arguments.entry) - by_name.keys()):
        parser.error(f"expected entries of the corpus, got {', '.join(unknown)}")
    report: dict[str, object] = {"root": str(adapter.root()), "libraries": _libraries(), "entries": {}}
    for name in arguments.entry or by_name:
        print(f"scoring {name}", file=sys.stderr)
        report["entries"][name] = _bits(by_name[name])  # type: ignore[index]
    arguments.out.write_text(json.dumps(report, indent=1))
    return 0


def _bits(entry: Entry) -> dict[str, object]:
    """Every score of an entry as the hexadecimal digits of its bytes, or what it lacks."""
    if missing := lacking(entry):
        return {"lacking": missing}
    scores, computes = {}, set()
    with tempfile.TemporaryDirectory(prefix="freshet-corpus-") as aside:
        for result in scored(entry, Path(aside)):
            computes.add(result.computes)
            for output, array in result.scores.items():
                bits = {"shape": list(array.shape), "dtype": array.dtype.str, "bytes": array.tobytes().hex()}
                scores[f"{result.moment.name}/{result.how}/{result.request.name}/{output}"] = bits
    return {"computes": sorted(computes), "scores": scores}


def _libraries() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
