"""Count words, pages, lines, options and flags of the repository: `make -C loadtest words`.

Words and pages are those of tracked Markdown under docs/, fenced blocks included; lines those of tracked Python files,
by top-level folder. Options are keys of `freshet serve`, training keys those of a training file, flags and commands
those of the command line. `--at REVISION` counts files of an earlier commit; options and flags are those that run.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import typer.main

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.processor.options import options_of
from freshet_serving.serving.commands.cli import app
from freshet_serving.serving.serve_config import OPTIONS

ROOT = Path(__file__).parents[2]
PRODUCT = ("serving", "processor", "compiler", "models", "freshet_serving", "clients", "generators")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", default="HEAD", help="a commit; HEAD if not set")
    revision = parser.parse_args().at
    for name, number in {**documentation(revision), **lines(revision), **surface()}.items():
        print(f"{name:<34}{number:>9,}")


def documentation(revision: str = "HEAD") -> dict[str, int]:
    """Return the words and pages of docs/ by folder, and the words of the pages in the root."""
    words: Counter[str] = Counter()
    pages: Counter[str] = Counter()
    for path in _tracked(revision, ".md"):
        top, *inner = path.parts
        if top == "docs" or not inner:
            folder = "/".join(path.parts[:2]) if len(path.parts) > 2 else top
            number = len(_text(revision, path).split())
            words[f"words, {folder}"] += number
            if top == "docs":
                words["words, all of docs"] += number
                pages[f"pages, {folder}"] += 1
                pages["pages, all of docs"] += 1
    return {**dict(sorted(words.items())), **dict(sorted(pages.items()))}


def lines(revision: str = "HEAD") -> dict[str, int]:
    """Return the lines of Python by top-level folder, and of the product's folders together."""
    counts: Counter[str] = Counter()
    for path in _tracked(revision, ".py"):
        number = len(_text(revision, path).splitlines())
        counts[f"lines, {path.parts[0] if len(path.parts) > 1 else 'root'}"] += number
        if path.parts[0] in PRODUCT:
            counts["lines, product"] += number
    return dict(sorted(counts.items()))


def surface() -> dict[str, int]:
    """Return the numbers of options, training keys, commands and flags."""
    commands = list(_commands(typer.main.get_command(app)))
    flags = sum(each.name != "help" for command in commands for each in command.params)
    return {
        "options of serve": len(OPTIONS),
        "keys of a training file": _keys(TrainConfig),
        "commands": len(commands),
        "flags and arguments": flags,
    }


def _keys(kind: Any) -> int:
    """Return the number of keys of a section and of the sections in it."""
    number = len(list(options_of(kind)))
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if "section" in field.metadata:
            inner = typing.get_args(hints[field.name])[-1] if typing.get_args(hints[field.name]) else hints[field.name]
            number += _keys(inner) if dataclasses.is_dataclass(inner) else 0
    return number


def _commands(command: Any) -> typing.Iterator[Any]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield command
        return
    for each in inner.values():
        yield from _commands(each)


def _tracked(revision: str, suffix: str) -> list[Path]:
    names = _git("ls-tree", "-r", "--name-only", "-z", revision).split("\0")
    return [Path(name) for name in names if name.endswith(suffix)]


def _text(revision: str, path: Path) -> str:
    return _git("show", f"{revision}:{path}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
