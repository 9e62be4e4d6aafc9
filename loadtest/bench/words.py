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
    for path, text in _tracked(revision, ".md"):
        top, *inner = path.parts
        folder = "/".join(path.parts[:2]) if len(path.parts) > 2 else top
        for group in ("all of docs", folder) if top == "docs" else () if inner else (folder,):
            words[f"words, {group}"] += len(text.split())
            pages[f"pages, {group}"] += top == "docs"
    return {**dict(sorted(words.items())), **dict(sorted((+pages).items()))}


def lines(revision: str = "HEAD") -> dict[str, int]:
    """Return the lines of Python by top-level folder, and of the product's folders together."""
    counts: Counter[str] = Counter()
    for path, text in _tracked(revision, ".py"):
        top = path.parts[0] if len(path.parts) > 1 else "root"
        for group in (top, "product") if top in PRODUCT else (top,):
            counts[f"lines, {group}"] += len(text.splitlines())
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


def _tracked(revision: str, suffix: str) -> typing.Iterator[tuple[Path, str]]:
    names = _git("ls-tree", "-r", "--name-only", "-z", revision).split("\0")
    return ((Path(name), _git("show", f"{revision}:{name}")) for name in names if name.endswith(suffix))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
