import subprocess

import pytest

from tests.affected import changes
from tests.affected.changes import Repository
from tests.affected.share import CommitShare, page

IDENTITY = ["-c", "user.name=x", "-c", "user.email=x@example.org"]


@pytest.fixture
def clone(tmp_path):
    """A repository with a module, its test and a page, and how to commit what was written."""

    def commit(**files):
        for path, text in files.items():
            file = tmp_path / path.replace("__", "/").replace("_py", ".py").replace("_md", ".md")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        subprocess.run(["git", *IDENTITY, "commit", "-qm", "x"], cwd=tmp_path, check=True)

    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    commit(
        processor__a_py='"""A."""\ndef one(): return 1\ndef two(): return 2\n',
        tests__a__test_one_py="from freshet_serving.processor.a import one\none()\n",
        tests__a__test_two_py="from freshet_serving.processor.a import two\ntwo()\n",
        notes__page_md="x",
    )
    return Repository(tmp_path), commit


def test_only_definitions_that_do_something_else_have_changed(clone):
    repository, commit = clone
    commit(processor__a_py='"""B."""\ndef one(): return 3\ndef two():\n    """Two."""\n    return 2\n')
    assert repository.changed("HEAD~1", "HEAD") == {"processor/a.py::one"}
    tree, lines = repository.tree("HEAD")
    assert tree.affected(repository.changed("HEAD~1", "HEAD")) == ["tests/a/test_one.py"]
    assert lines == {"tests/a/test_one.py": 2, "tests/a/test_two.py": 2}


def test_working_tree_counts_files_that_git_does_not_know(clone):
    repository, _ = clone
    (repository.root / "tests/a/test_new.py").write_text("def test_one(): ...\n")
    (repository.root / "notes/page.md").write_text("y")
    changed = repository.changed("HEAD")
    assert changed == {"tests/a/test_new.py", "tests/a/test_new.py::test_one", "notes/page.md"}
    assert repository.working_tree().affected(changed) == ["tests/a/test_new.py"]


def test_removed_definition_affects_those_that_still_name_it(clone):
    repository, commit = clone
    commit(processor__a_py="def one(): return 1\n")
    tree, _ = repository.tree("HEAD")
    assert tree.affected(repository.changed("HEAD~1", "HEAD")) == ["tests/a/test_two.py"]


def test_base_on_main_is_the_commit_before(clone):
    repository, commit = clone
    commit(notes__page_md="y")
    assert repository.base() == "HEAD~1"
    before = repository.git("rev-parse", "HEAD").strip()
    repository.git("checkout", "-qb", "work")
    commit(notes__page_md="z")
    assert repository.base() == before


def test_shares_are_told_by_floor():
    measured = [
        CommitShare("a", 0.1, frozenset({"processor"})),
        CommitShare("b", 0.3, frozenset({"processor", "serving"})),
        CommitShare("c", 0.2, frozenset({"processor"})),
    ]
    text = page(measured, 6, 2, (9, 10))
    assert "3 of the last 6 commits" in text
    assert "| all | 3 | 10 % | 20 % | 30 % | 18 % |\n| in processor/ | 3 | 10 % | 20 % | 30 % | 40 % |\n" in text
    assert "in serving/" not in text
    assert "For 9 of the 10 mutants" in text


@pytest.mark.parametrize("path", ["tests/affected/changes.py", "tests/e2e/servers.py", "processor/ports.py"])
def test_stored_facts_are_those_of_the_source(path, tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "STORE", tmp_path / "facts")
    source = (changes.ROOT / path).read_text()
    facts = changes._stored(path, source)
    assert facts == changes._facts(path, source)
    monkeypatch.setattr(changes, "_facts", lambda path, source: changes.Facts())
    assert changes._stored(path, source) == facts
    assert changes._stored(path, f"{source}\nx = 1\n") == changes.Facts()
