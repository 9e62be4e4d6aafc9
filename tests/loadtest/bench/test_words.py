import subprocess

import pytest

from loadtest.bench import words


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit and an untracked page."""
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "docs" / "index.md").write_text("# Two words\n")
    (tmp_path / "docs" / "how-to" / "serve.md").write_text("one two three\n\n```bash\nls\n```\n")
    (tmp_path / "README.md").write_text("five words are in here\n")
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "http.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_http.py").write_text("c = 3\n")

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (tmp_path / "docs" / "untracked.md").write_text("not counted\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)


@pytest.mark.usefixtures("repository")
def test_words_and_pages_of_tracked_docs():
    counts = words.documentation()
    assert counts["words, all of docs"] == 3 + 6
    assert counts["words, docs/how-to"] == 6
    assert counts["words, README.md"] == 5
    assert counts["pages, all of docs"] == 2


@pytest.mark.usefixtures("repository")
def test_lines_by_folder():
    assert words.lines() == {"lines, product": 2, "lines, serving": 2, "lines, tests": 1}


def test_surface_counts_every_option_and_command():
    counts = words.surface()
    assert counts["options of serve"] == len(words.OPTIONS)
    assert counts["keys of a training file"] > 100
    assert counts["commands"] > 30
    assert counts["flags and arguments"] > 200
