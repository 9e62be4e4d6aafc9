"""Public docstrings say what a thing is or does."""

import ast
import re
from pathlib import Path

from tests.affected.changes import here

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving/", "serving/", "models/", "compiler/", "processor/")
OPENINGS = frozenset(["What", "Whether", "Of", "Who", "Whose", "Which", "Those", "That", "How", "Where", "Why", "See"])


def openings(tree):
    """Yield (line, first word) of public docstrings that begin with one of OPENINGS."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            word = re.match(r"\w+", ast.get_docstring(node) or "")
            if word and word[0] in OPENINGS and not getattr(node, "name", "").startswith("_"):
                yield getattr(node, "lineno", 1), word[0]


def test_docstring_does_not_start_with_a_question_word():
    paths = (path for path in here().paths if path.startswith(FLOORS))
    found = {path: list(openings(ast.parse((ROOT / path).read_text()))) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}
