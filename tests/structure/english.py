"""Count what the writing guide in CONTRIBUTING.md rules out: `python -m tests.structure.english`.

- openings: docstrings of public names whose first word is one of OPENINGS.
- wanted: string constants shorter than MOST_LETTERS that contain the word "wanted", docstrings left out.
- told: occurrences of the word "told" in source files, identifiers included.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.structure.sources import FLOORS

ROOT = Path(__file__).parents[2]
OPENINGS = frozenset(["What", "Whether", "Of", "Who", "Whose", "Which", "Those", "That", "How", "Where", "Why", "See"])
MOST_LETTERS = 300
MEASURING = "loadtest"


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the source files of the product; benchmarks and tests are left out."""
    for floor in FLOORS:
        if floor != MEASURING:
            yield from (path for path in sorted((root / floor).rglob("*.py")) if not path.is_symlink())


def openings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return (line, first word) of public docstrings that begin with one of OPENINGS."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            word = re.match(r"\w+", text or "")
            if word and word[0] in OPENINGS and not getattr(node, "name", "").startswith("_"):
                found.append((getattr(node, "lineno", 1), word[0]))
    return found


def wanted(tree: ast.Module) -> list[tuple[int, str]]:
    """Return (line, text) of short string constants, docstrings left out, that contain the word "wanted"."""
    alone = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in alone
        and len(node.value) < MOST_LETTERS
        and re.search(r"\bwanted\b", node.value)
    ]


def told(text: str) -> int:
    """Return how often the word "told" stands in a file."""
    return len(re.findall(r"\btold\b", text))


def main() -> int:
    """Print each finding and the three counts; return the exit status."""
    first, strings, words = 0, 0, 0
    for path in files():
        text = path.read_text()
        tree = ast.parse(text)
        name = path.relative_to(ROOT)
        for line, word in openings(tree):
            print(f"{name}:{line}: opens with {word}")
            first += 1
        for line, value in wanted(tree):
            print(f"{name}:{line}: {value[:80]!r}")
            strings += 1
        words += told(text)
    print(f"openings {first}, strings with 'wanted' {strings}, words 'told' {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
