"""The files of a commit or of the working tree, with their facts, and what has changed since a revision. Asks git.

Facts are kept by a file's content, so a walk over many commits reads each version of a file once. Those of the tree
that these tests belong to are kept in build/tests/facts as well, a file for each module, for other processes and the
next run: to read them from the sources takes many times as long.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from tests.affected import facts as reading
from tests.affected.closure import Tree, is_test
from tests.affected.facts import Facts, Part, codes_of, facts_of

ROOT = Path(__file__).parents[2]
STORE = ROOT / "build" / "tests" / "facts"

LEFT_OUT = ("tests/corpus/frozen/",)
"""Python in it is data."""
HELP = ("serving/commands/",)
"""Docstrings in it are what users read: no mere words."""


class Repository:
    """One clone. root: its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._facts: dict[tuple[str, str], Facts] = {}
        self._lines: dict[str, int] = {}

    def git(self, *arguments: str) -> str:
        """Return what a command of git prints; raise CalledProcessError if it fails."""
        return subprocess.run(
            ["git", *arguments], cwd=self.root, check=True, capture_output=True, text=True, errors="replace"
        ).stdout

    def working_tree(self, finds_extensions: bool = True) -> Tree:
        """Return the tree as it lies on the disk, with files that git does not know yet."""
        listed = self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        files = {path for path in listed.split("\0") if path and is_file(self.root / path)}
        code = {path for path in files if is_code(path)}
        read = _stored if self.root == ROOT else _facts
        return Tree(code, lambda path: read(path, (self.root / path).read_text()), files - code, finds_extensions)

    def tree(self, commit: str) -> tuple[Tree, dict[str, int]]:
        """Return the tree of a commit, and the lines of each of its tests."""
        blobs, others = {}, []
        for entry in filter(None, self.git("ls-tree", "-rz", commit).split("\0")):
            about, _, path = entry.partition("\t")
            mode, kind, blob = about.split(" ")
            if kind != "blob" or mode == "120000":
                continue
            if is_code(path):
                blobs[path] = blob
            else:
                others.append(path)
        self._read(blobs)
        tree = Tree(blobs, lambda path: self._facts[path, blobs[path]], others)
        return tree, {test: self._lines[blobs[test]] for test in tree.tests}

    def changed(self, since: str, commit: str = "") -> set[str]:
        """
        Return the nodes of Python files and the paths of other files that have changed.

        Args:
            since: the older revision.
            commit: the newer one; the working tree if empty.
        """
        names = self.git("diff", "--name-only", "--no-renames", "-z", since, *([commit] if commit else []), "--")
        paths = set(filter(None, names.split("\0")))
        if not commit:
            paths |= set(filter(None, self.git("ls-files", "-z", "--others", "--exclude-standard").split("\0")))
        changed: set[str] = set()
        for path in paths:
            changed |= self._parts(path, since, commit) if is_code(path) else {path}
        return changed

    def base(self) -> str:
        """Return the commit that the work here began from: where the branch left main, on main the one before."""
        try:
            base = self.git("merge-base", "main", "HEAD").strip()
        except subprocess.CalledProcessError:
            return "HEAD~1"
        return base if base != self.git("rev-parse", "HEAD").strip() else "HEAD~1"

    def _parts(self, path: str, since: str, commit: str) -> set[str]:
        """Return the parts of a Python file that do something else than they did; a test's file too, which runs."""
        whole = {path, f"{path}::*"}
        if path.startswith(HELP):
            return whole
        try:
            before, after = (codes_of(source) for source in (self._source(path, since), self._source(path, commit)))
        except SyntaxError:
            return whole
        parts = {f"{path}::{name}" for name in before.keys() | after if before.get(name) != after.get(name)}
        return parts | {path} if is_test(path) else parts

    def _source(self, path: str, commit: str) -> str:
        """Return a file's text; none where it is not there."""
        try:
            return self.git("show", f"{commit}:{path}") if commit else (self.root / path).read_text()
        except (subprocess.CalledProcessError, OSError):
            return ""

    def _read(self, blobs: dict[str, str]) -> None:
        """Read the facts of all files that are not known yet."""
        unread = [(path, blob) for path, blob in blobs.items() if (path, blob) not in self._facts]
        if not unread:
            return
        asked = "\n".join(blob for _, blob in unread).encode()
        data = subprocess.run(
            ["git", "cat-file", "--batch"], cwd=self.root, check=True, capture_output=True, input=asked
        ).stdout
        at = 0
        for path, blob in unread:
            end = data.index(b"\n", at)
            nbytes = int(data[at:end].split()[2])
            source = data[end + 1 : end + 1 + nbytes].decode(errors="replace")
            self._facts[path, blob] = _facts(path, source)
            self._lines[blob] = source.count("\n")
            at = end + 1 + nbytes + 1


@cache
def here() -> Tree:
    """Return the tree that these tests belong to, with extensions only where they are imported; read once."""
    return Repository(ROOT).working_tree(finds_extensions=False)


def is_code(path: str) -> bool:
    """Return whether a file is Python that somebody may import or run."""
    return path.endswith(".py") and not path.startswith(LEFT_OUT)


def is_file(path: Path) -> bool:
    """Return whether a path is a file of its own, and no link to one."""
    return path.is_file() and not path.is_symlink()


def _facts(path: str, source: str) -> Facts:
    try:
        return facts_of(source, path.rpartition("/")[0].replace("/", "."))
    except SyntaxError:
        return facts_of("")


@cache
def _code() -> bytes:
    """Return the source of what reads facts."""
    return Path(reading.__file__).read_bytes()


def _stored(path: str, source: str) -> Facts:
    """Return a module's facts from the store, if it has those of this source, read by this code."""
    file, digest = STORE / f"{path.replace('/', '.')}.json", hashlib.sha256(_code() + source.encode()).hexdigest()
    try:
        stored = json.loads(file.read_bytes())
        if stored["digest"] == digest:
            return Facts({name: _part(values) for name, values in stored["parts"].items()}, stored["typed"])
    except (OSError, ValueError, KeyError):
        file.parent.mkdir(parents=True, exist_ok=True)
    facts = _facts(path, source)
    stored = {"digest": digest, "typed": facts.typed, "parts": {n: _values(part) for n, part in facts.parts.items()}}
    whole = file.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps(stored))
    whole.replace(file)
    return facts


def _values(part: Part) -> list[Any]:
    values = (getattr(part, field.name) for field in fields(part))
    return [value if isinstance(value, dict) else sorted(value) for value in values]


def _part(values: list[Any]) -> Part:
    """Return the part that _values() was made of."""
    return Part(*(value if isinstance(value, dict) else set(map(_hashable, value)) for value in values))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
