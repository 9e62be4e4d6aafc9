"""Whether two commits are the same program but for moves and renames that a table names.

    python -m tests.structure.same BASE HEAD --names TABLE [--root FOLDER ...]

TABLE is TOML. Every value is a string:

    [modules]
    "processor.mirror" = "processor.repository"      # a module, or a package with all that lies in it
    [names]
    Said = "Message"                                 # a name, wherever in the sources it stands
    "processor.sessions:admit" = "check_capacity"    # a name in the modules of one package, as it was called in BASE

The sources of BASE are read as trees, module paths and names are mapped, and each module is compared with the one that
lies there in HEAD. Docstrings, comments, layout and the order of neighbouring imports do not count; import statements
are compared name by name. A string that is wholly a module, a name or "module:name" of the table may be mapped or not:
entry points are, keys of a protocol are not. The prefix `freshet_serving.` of an import does not change where a file
lies (tests/structure/sources.py).

Limits. A name is mapped without regard to scopes, in every module or in those of the package before its colon; a module
in which an old and its new name both stood before is listed, for two things may have become one. What is merged or
divided is listed as it is: only in base, only in head.

The exit status is 0 where nothing differs, 1 where something does, 2 for a table or a commit that cannot be read.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.structure.sources import FLOORS, own_name

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_LETTERS = 20, 200
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
NAME = re.compile(rf"({MODULE.pattern}:)?[A-Za-z_]\w*")


class TableError(ValueError):
    """The table cannot be used."""


@dataclass(frozen=True)
class Table:
    """Old -> new, of modules and of names."""

    modules: Mapping[str, str]
    names: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Table:
        """Read a table; raises TableError."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TableError(f"names: expected TOML, {error}") from error
        if unknown := sorted(data.keys() - {"modules", "names"}):
            raise TableError(f"names: expected the tables [modules] and [names], got [{unknown[0]}]")
        for section, pairs in data.items():
            pattern = MODULE if section == "modules" else NAME
            for old, new in pairs.items():
                if not (pattern.fullmatch(old) and isinstance(new, str) and pattern.fullmatch(new) and ":" not in new):
                    what = "modules" if section == "modules" else "names"
                    raise TableError(f"{section}: expected two {what}, got {old!r} = {new!r}")
        return cls(data.get("modules", {}), data.get("names", {}))

    def within(self, module: str) -> Table:
        """Return the table for one module of BASE: names of other packages are left out."""
        names = {}
        for key, new in sorted(self.names.items(), key=lambda item: len(item[0].rpartition(":")[0])):
            package, _, old = key.rpartition(":")
            if not package or f"{module}.".startswith(f"{package}."):
                names[old] = new
        return Table(self.modules, names)

    def module(self, dotted: str) -> str:
        """Return the new name of a module, by the longest entry that it lies in."""
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            new = self.modules.get(".".join(parts[:count]))
            if new is not None:
                return ".".join([new, *parts[count:]])
        return dotted

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def imported(self, module: str, name: str) -> tuple[str, str]:
        """Return what `from module import name` becomes; the name may be a module."""
        full = f"{module}.{name}"
        if self.module(full) != f"{self.module(module)}.{name}":
            base, _, last = self.module(full).rpartition(".")
            return base, last
        return self.module(module), self.name(name)

    def text(self, text: str) -> str:
        """Return a string that is wholly a module, a name or "module:name", mapped; any other as it is."""
        module, colon, name = text.partition(":")
        if colon and module.replace(".", "").isidentifier() and name.isidentifier():
            return f"{self.module(module)}:{self.name(name)}"
        return self.name(text) if text in self.names else self.module(text)


class _Mapper(ast.NodeTransformer):
    """Maps a tree and takes out what does not count."""

    NAMED = ("id", "name", "attr", "arg", "asname", "rest")

    def __init__(self, table: Table, roots: set[str]) -> None:
        """roots: names that plain imports bind; what begins with another one is no module."""
        self._table, self._roots = table, roots

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in self.NAMED:
            value = getattr(node, field, None)
            if isinstance(value, str):
                setattr(node, field, self._table.name(value))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = sorted(map(self._table.name, node.names))
        if isinstance(node, ast.MatchClass):
            node.kwd_attrs = [self._table.name(name) for name in node.kwd_attrs]
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstrings(node.body)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, _sorted_imports(block))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        dotted = _dotted(node)
        if (
            dotted is not None
            and dotted.partition(".")[0] in self._roots
            and (new := self._table.module(dotted)) != dotted
        ):
            return ast.parse(new, mode="eval").body
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST:
        node.names = [
            ast.alias(self._table.module(alias.name), alias.asname and self._table.name(alias.asname))
            for alias in node.names
        ]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if not node.module or node.level:
            return self.generic_visit(node)
        made: list[ast.stmt] = []
        for alias in node.names:
            module, name = self._table.imported(node.module, alias.name)
            as_name = alias.asname and self._table.name(alias.asname)
            made.append(ast.ImportFrom(module, [ast.alias(name, None if as_name == name else as_name)], 0))
        return made

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.before, node.value = node.value, self._table.text(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        node.values = [part if isinstance(part, ast.Constant) else self.visit(part) for part in node.values]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if (
            isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
            and isinstance(node.value, ast.List)
        ):
            node.value.elts.sort(key=ast.dump)
        return node


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return None if head is None else f"{head}.{node.attr}"
    return None


def _without_docstrings(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a block without strings that stand alone: its docstring, and those below what they describe."""
    return [
        node
        for node in body
        if not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
    ]


def _sorted_imports(block: list[ast.stmt]) -> list[ast.stmt]:
    """Return a block whose neighbouring imports are divided into single names, in order, each once."""
    done: list[ast.stmt] = []
    run: dict[str, ast.stmt] = {}
    for node in [*block, None]:
        if isinstance(node, ast.Import):
            run |= {ast.unparse(one): one for one in (ast.Import([alias]) for alias in node.names)}
        elif isinstance(node, ast.ImportFrom):
            run |= {ast.unparse(one): one for one in (ast.ImportFrom(node.module, [a], node.level) for a in node.names)}
        else:
            done += [run[key] for key in sorted(run)]
            run = {}
            if node is not None:
                done.append(node)
    return done


def tree_of(text: str, table: Table) -> ast.Module:
    """Return the tree of a module as it is compared: mapped, without docstrings and comments, imports in order."""
    tree = ast.parse(text)
    roots, bound = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # A module that is imported by its own name is used by its new one.
            bound |= {
                alias.name: table.imported(node.module, alias.name)[1] for alias in node.names if not alias.asname
            }
    table = Table(table.modules, {**table.names, **{old: new for old, new in bound.items() if old != new}})
    return ast.fix_missing_locations(_Mapper(table, roots).visit(tree))


def agree_on_strings(base: ast.Module, head: ast.Module) -> None:
    """Take back, in base, the mapping of strings that head has as they were before."""
    ours, theirs = ([n for n in ast.walk(tree) if isinstance(n, ast.Constant)] for tree in (base, head))
    if len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            if getattr(one, "before", None) == other.value:
                one.value = other.value


def both_stand(text: str, table: Table) -> list[str]:
    """Return the new names of the table that stand in a module of BASE beside their old ones."""
    words = {
        getattr(node, field)
        for node in ast.walk(ast.parse(text))
        for field in _Mapper.NAMED
        if isinstance(getattr(node, field, None), str)
    }
    used = [(old, new) for old, new in table.names.items() if old in words and old != new]
    targets = Counter(new for _, new in used)
    return sorted({new for _, new in used if targets[new] > 1 or (new in words and new not in table.names)})


def module_of(path: str) -> str:
    """Return the dotted name of a file, without the prefix that its folder may be imported under."""
    return own_name(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def path_of(path: str, table: Table) -> str:
    """Return where a file of BASE lies in HEAD."""
    end = "/__init__.py" if path.endswith("/__init__.py") else ".py"
    return own_name(table.module(module_of(path))).replace(".", "/") + end


def compare(base: Mapping[str, str], head: Mapping[str, str], table: Table) -> list[str]:
    """
    Return what differs, an entry for each module; none where the two are the same.

    Args:
        base: path -> source of a commit.
        head: that of the other one.
        table: what has moved and been renamed from base to head.

    Raises:
        TableError: two files would lie in one place.
    """
    nothing = Table({}, {})
    moved: dict[str, str] = {}
    for path in base:
        new = path_of(path, table)
        if new in moved:
            raise TableError(f"modules: expected one file for {new}, got {moved[new]} and {path}")
        moved[new] = path
    found = [f"only in base: {moved[path]}" for path in sorted(moved.keys() - head.keys())]
    found += [f"only in head: {path}" for path in sorted(head.keys() - moved.keys())]
    for path in sorted(moved.keys() & head.keys()):
        old = moved[path]
        names = table.within(module_of(old))
        if twice := both_stand(base[old], names):
            found.append(f"two names have become one: {old}: {', '.join(twice)}")
        one, other = tree_of(base[old], names), tree_of(head[path], nothing)
        agree_on_strings(one, other)
        if ast.dump(one) != ast.dump(other):
            texts = (ast.unparse(tree).splitlines() for tree in (one, other))
            lines = list(difflib.unified_diff(*texts, old, path, n=0, lineterm=""))
            more = [f"... {len(lines) - MOST_LINES} lines more"] if len(lines) > MOST_LINES else []
            found.append("\n".join([f"differs: {path}", *(line[:MOST_LETTERS] for line in lines[:MOST_LINES]), *more]))
    return found


def sources_at(commit: str, roots: Iterable[str]) -> dict[str, str]:
    """Return path -> source of the Python files of a commit; links are left out. Raises CalledProcessError."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode()

    found = {}
    for line in git("ls-tree", "-r", "--full-tree", commit, "--", *roots).splitlines():
        what, path = line.split("\t", 1)
        if what.startswith("100") and path.endswith(".py"):
            found[path] = git("show", f"{commit}:{path}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.structure.same", description=__doc__.partition("\n")[0])
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("--names", type=Path, required=True, help="the table of what has moved and been renamed")
    parser.add_argument("--root", action="append", help="a folder to compare; all top folders without one")
    given = parser.parse_args(arguments)
    roots = given.root or FLOORS
    try:
        table = Table.parse(given.names.read_text())
        found = compare(sources_at(given.base, roots), sources_at(given.head, roots), table)
    except (TableError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(error.stderr.decode().strip(), file=sys.stderr)
        return 2
    print("\n".join(found) if found else "the same")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
