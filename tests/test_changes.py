"""Each change that users see is one sentence in a file of its own, so that branches do not meet in one place."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")


def test_files_are_named_by_their_kind():
    kinds = {
        kind["directory"] for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    }
    for path in FILES:
        named = re.fullmatch(r"\+[\w-]+\.(\w+)\.md", path.name)
        assert named is not None, path.name
        assert named[1] in kinds, path.name


def test_each_file_is_one_line_that_ends_with_a_full_stop():
    for path in FILES:
        text = path.read_text()
        assert text.endswith(".\n"), path.name
        assert text.count("\n") == 1, path.name


def test_changelog_has_the_place_where_towncrier_writes():
    start = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["start_string"]
    assert (ROOT / "CHANGELOG.md").read_text().count(start) == 1
