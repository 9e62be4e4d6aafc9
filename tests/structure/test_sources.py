import ast
import re
from pathlib import Path

import pytest

from tests.structure.__main__ import page
from tests.structure.sources import Sources, own_name

ROOT = Path(__file__).parents[2]
OPENINGS = frozenset(["What", "Whether", "Of", "Who", "Whose", "Which", "Those", "That", "How", "Where", "Why", "See"])
FILES = {
    "processor/__init__.py": "",
    "processor/clock.py": "class Clock: ...\nclass Whoever: ...\nclass FakeClock: ...\n",
    "processor/package/__init__.py": "from processor.package.delta import Delta, read\n",
    "processor/package/delta.py": "from processor.clock import Clock\nclass Delta: ...\ndef read(): ...\n",
    "processor/package/deep/__init__.py": "",
    "serving/__init__.py": "",
    "serving/app.py": "def f():\n    from freshet_serving.processor.package import Delta\n",
    "serving/port.py": "from processor.package.delta import Delta, read\nfrom processor.package import delta\n",
    "loadtest/bench.py": "from processor.clock import Clock, FakeClock\n",
    "tests/test_a.py": "1\n2\n",
    "Makefile": "BIN := x\nhelp:\n\t@true\na-b c: help ## text\n.venv/x: y\n\ttouch x\n",
}


@pytest.fixture
def sources(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources(tmp_path)


def test_packages_are_counted_as_folders_and_flat_modules(sources):
    assert sources.subpackages == [
        "loadtest.bench",
        "processor.clock",
        "processor.package",
        "serving.app",
        "serving.port",
    ]
    assert sources.folders == ["processor.package", "processor.package.deep"]


def test_imports_are_counted_for_either_package_name(sources):
    assert sources.arrows == {
        ("processor.package", "processor.clock"),
        ("serving.app", "processor.package"),
        ("serving.port", "processor.package"),
        ("loadtest.bench", "processor.clock"),
    }
    assert own_name("freshet_serving.processor.clock") == "processor.clock"
    assert own_name("freshet_serving.strangers") == "freshet_serving.strangers"


def test_reexported_name_counts_once_and_benchmarks_never(sources):
    assert sources.used_names == {
        "processor.package": {
            ("processor.package.delta", "Delta"),
            ("processor.package.delta", "read"),
            ("processor.package.delta", ""),
        },
        "processor.clock": {("processor.clock", "Clock")},
    }


def test_one_word_class_names_are_listed_unless_standard_terms(sources):
    assert sources.one_word_classes == ["Clock", "Delta", "Whoever"]
    assert sources.private_words == ["Whoever"]


def test_lines_and_targets_are_counted(sources):
    assert sources.lines()["processor"] == 7
    assert sources.lines()["tests"] == 2
    assert sources.targets() == ["a-b", "c", "help"]


def test_links_to_top_folders_are_not_counted_twice(sources):
    before = dict(Sources(sources.root).files)
    (sources.root / "freshet_serving").mkdir()
    (sources.root / "freshet_serving" / "processor").symlink_to("../processor")
    assert sources.files == before


def test_report_says_why_a_code_path_was_not_recorded(sources):
    text = page(sources, {"a predict": ["a.py", "b.py"], "an object-store delta": "not taken: no moto"}, {80: 60})
    assert "| files on the way of a predict | 2 | 43 |" in text
    assert "| files on the way of an object-store delta | not taken: no moto | 38 |" in text
    assert "- a.py\n- b.py" in text
    assert "| lines of `freshet serve --help`, 80 columns | 60 | 197 |" in text


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


def test_docstring_does_not_start_with_a_question_word():
    found = {}
    for name, path in Sources(ROOT).files.items():
        if not name.startswith("loadtest") and (lines := openings(ast.parse(path.read_text()))):
            found[name] = lines
    assert found == {}
