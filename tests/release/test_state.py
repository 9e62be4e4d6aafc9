"""What no release is made of, each in a line."""

import subprocess

import pytest

from tests.release.state import commit_epoch_s, git, refusals, tag, version_of

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.0, 2026-12-01\n\n### Added\n\n- All of it.\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "nobody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "nobody@localhost")
        monkeypatch.setenv(f"GIT_{name}_DATE", "2026-12-01T00:00:00Z")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", tmp_path], check=True)
    write(tmp_path, "1.2.0", CHANGELOG)
    return tmp_path


def write(tree, version, changelog):
    (tree / "pyproject.toml").write_text(f'[project]\nname = "x"\nversion = "{version}"\n')
    (tree / "CHANGELOG.md").write_text(changelog)
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--allow-empty", "--message", "a commit")


def test_clean_tree_with_a_changelog_section_is_a_release(tree):
    assert (version_of(tree), refusals(tree)) == ("1.2.0", [])
    assert commit_epoch_s(tree) == 1_796_083_200


def test_file_time_may_be_given(tree, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "17")
    assert commit_epoch_s(tree) == 17


def test_dirty_tree_is_refused(tree):
    (tree / "more").write_text("")
    assert refusals(tree) == ["tree: a clean one wanted, got 1 changed or unknown files, more first"]


@pytest.mark.parametrize(
    ("changelog", "why"),
    [
        ("# Changelog\n\n## Unreleased\n", "CHANGELOG.md: a section '## 1.2.0, YYYY-MM-DD' wanted, got none"),
        (CHANGELOG.replace("1.2.0, 2", "1.2.0 2"), "CHANGELOG.md: a section '## 1.2.0, YYYY-MM-DD' wanted, got none"),
        (CHANGELOG.replace("1.2.0", "1x2.0"), "CHANGELOG.md: a section '## 1.2.0, YYYY-MM-DD' wanted, got none"),
        (
            CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- More.\n"),
            "CHANGELOG.md: nothing under Unreleased wanted, got entries that no version has",
        ),
    ],
)
def test_changelog_without_the_version_is_refused(tree, changelog, why):
    write(tree, "1.2.0", changelog)
    assert refusals(tree) == [why]


def test_changes_that_no_version_has_are_refused(tree):
    (tree / "changes").mkdir()
    (tree / "changes" / "+more.added.md").write_text("More.\n")
    write(tree, "1.2.0", CHANGELOG)
    assert refusals(tree) == ["changes/: no file wanted, got 1, +more.added.md first; run towncrier build"]


def test_version_that_an_index_would_normalise_is_refused(tree):
    write(tree, "1.2", CHANGELOG.replace("1.2.0", "1.2"))
    assert refusals(tree) == ["project.version: a version such as 1.2.0 or 1.2.0rc1 wanted, got '1.2'"]


def test_tag_is_annotated_created_once_and_never_moved(tree):
    assert tag(tree) == tag(tree) == "v1.2.0"
    assert git(tree, "cat-file", "-t", "v1.2.0") == "tag"
    assert refusals(tree) == []
    git(tree, "commit", "--quiet", "--allow-empty", "--message", "another")
    assert refusals(tree) == ["tag v1.2.0: this commit or none wanted, got another commit"]
