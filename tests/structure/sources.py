"""Counts that are read from the sources alone: nothing of the product is imported here.

A module's name is that of its path without the prefix `freshet_serving.`, which the top folders may be imported under:
counts before and after such a change of import names compare the same things.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path

PREFIX = "freshet_serving"
FLOORS = (PREFIX, "serving", "models", "compiler", "processor", "loadtest")
MEASURING = "loadtest"
LINKED = frozenset({"serving", "models", "compiler", "processor"})
"""Top folders that are imported as subpackages of PREFIX, by links in its folder."""
ONE_WORD = re.compile(r"_?[A-Z][a-z0-9]*")
TARGET = re.compile(r"^([a-z][a-z0-9-]*(?: [a-z][a-z0-9-]*)*):(?!=)", re.MULTILINE)

FIELD_WORDS = frozenset(Path(__file__).with_name("field_words.txt").read_text().split())
"""Words that another engineer of the field reads at once; every other class name of one word is listed."""


def own_name(name: str) -> str:
    """Return a dotted name without the prefix that the top folders may be imported under."""
    head, _, rest = name.partition(".")
    return rest if head == PREFIX and rest.partition(".")[0] in FLOORS[1:] else name


def import_name(name: str) -> str:
    """Return what a module of a top folder is imported as: own_name() the other way round."""
    return f"{PREFIX}.{name}" if name.partition(".")[0] in LINKED else name


def subpackage_of(module: str) -> str:
    """Return the folder or flat module below a top folder that a module belongs to; the top folder's own for itself."""
    return ".".join(module.split(".")[:2])


class Sources:
    """The Python files of the top folders of one tree."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def files(self) -> dict[str, Path]:
        """Every module's name -> its file. Links are left out: what they lead to is counted where it lies."""
        found = {}
        for floor in FLOORS:
            for folder, folders, names in os.walk(self.root / floor):
                folders[:] = sorted(name for name in folders if not Path(folder, name).is_symlink())
                for name in sorted(names):
                    path = Path(folder, name)
                    if path.suffix == ".py" and not path.is_symlink():
                        parts = path.relative_to(self.root).with_suffix("").parts
                        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {name: ast.parse(path.read_text()) for name, path in self.files.items()}

    @cached_property
    def subpackages(self) -> list[str]:
        """Folders and flat modules that lie directly in a top folder, as tests/test_layers.py has them."""
        return sorted({subpackage_of(name) for name in self.files} - set(FLOORS))

    @cached_property
    def folders(self) -> list[str]:
        """Every folder with an __init__.py below a top folder, at any depth."""
        return sorted(n for n, path in self.files.items() if path.name == "__init__.py" and n not in FLOORS)

    def imported(self, module: str) -> set[tuple[str, str]]:
        """Return (module, name) of all that a module imports from the tree; name is empty where it is the module."""
        found = set()
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                found |= {(own_name(alias.name), "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                base = own_name(node.module)
                for alias in node.names:
                    full = own_name(f"{node.module}.{alias.name}")
                    found.add((full, "") if full in self.files else (base, alias.name))
        return {(base, name) for base, name in found if base in self.files and base != module}

    @cached_property
    def arrows(self) -> set[tuple[str, str]]:
        """(importing subpackage, imported subpackage), wherever in a module the import stands."""
        pairs = {(subpackage_of(name), subpackage_of(other)) for name in self.files for other, _ in self.imported(name)}
        return {(one, other) for one, other in pairs if one != other and not {one, other} & set(FLOORS)}

    def _origin(self, base: str, name: str) -> tuple[str, str]:
        """Follow a name that an __init__ passes on to the module that it comes from."""
        for _ in range(5):
            if self.files[base].name != "__init__.py":
                break
            passed = {
                alias.asname or alias.name: (own_name(node.module), alias.name)
                for node in self.trees[base].body
                if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
                for alias in node.names
            }
            if name not in passed or passed[name][0] not in self.files:
                break
            base, name = passed[name]
        return base, name

    @cached_property
    def used_names(self) -> dict[str, set[tuple[str, str]]]:
        """Subpackage -> (module, name) of what modules outside of it import from it; benchmarks, which may look into
        everything, do not count."""
        found = defaultdict(set)
        for module in self.files:
            for base, name in self.imported(module) if module.partition(".")[0] != MEASURING else ():
                if subpackage_of(base) != subpackage_of(module) and base not in FLOORS:
                    found[subpackage_of(base)].add(self._origin(base, name))
        return found

    @cached_property
    def one_word_classes(self) -> list[str]:
        """Class names of one word, with or without a leading underscore."""
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        return sorted({node.name for node in nodes if ONE_WORD.fullmatch(node.name)})

    @cached_property
    def private_words(self) -> list[str]:
        """Class names of one word that is none of FIELD_WORDS."""
        return [name for name in self.one_word_classes if name.lstrip("_") not in FIELD_WORDS]

    def lines(self) -> Counter[str]:
        """Return the lines of Python by top folder, those of tests with them."""
        found: Counter[str] = Counter()
        for name, path in self.files.items():
            found[name.partition(".")[0]] += len(path.read_text().splitlines())
        for path in (self.root / "tests").rglob("*.py"):
            found["tests"] += len(path.read_text().splitlines())
        return found

    def targets(self) -> list[str]:
        """Return the targets of the root Makefile that have a name to type, without files and folders."""
        text = (self.root / "Makefile").read_text()
        return sorted({name for match in TARGET.finditer(text) for name in match[1].split()})


def help_lines(root: Path, columns: int) -> int:
    """Return how many lines `freshet serve --help` prints on a terminal of so many columns."""
    done = subprocess.run(
        [sys.executable, "-m", "freshet_serving", "serve", "--help"],
        cwd=root,
        env={**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return len(done.stdout.splitlines())
