"""A version without labelled rows is compared with the one before by its inputs, its tables and their ids."""

import dataclasses

import pytest

from freshet_serving.compiler.building import unlabelled_review
from freshet_serving.compiler.building.unlabelled_review import unlabelled_notes
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.processor.repository.model_repository import Repository
from tests.support.packages import write_package

USERS = range(1000)


@pytest.fixture
def repository(tmp_path):
    """A repository with version 1."""
    write_package(tmp_path / "repository", users=USERS)
    return Repository(tmp_path / "repository")


@pytest.fixture
def made(tmp_path):
    """Makes a version that is not in the repository, with something else in its manifest."""

    def make(users=USERS, **changes):
        write_package(tmp_path / "draft", users=users)
        version = Repository(tmp_path / "draft").version("small")
        version.manifest = dataclasses.replace(version.manifest, **changes)
        return version

    return make


def gate(repository, version):
    return unlabelled_notes(repository, version)["gate"]


def test_version_like_the_one_before_has_nothing_to_report(repository, made):
    notes = gate(repository, made())
    assert (notes["verdict"], notes["reported"]) == ("unjudged", [])
    assert notes["unjudged"] == ["not judged: no held-out rows; only NaN and infinity are refused"]


def test_lost_and_changed_inputs_are_reported(repository, made):
    inputs = [Input("user", "string"), Input("floats", "float32", columns=4)]
    assert gate(repository, made(inputs=inputs))["reported"] == [
        "input 'user' is string, and version 1 reads it as int64",
        "input 'tags' is missing, which version 1 reads",
    ]


def test_lost_table_is_reported(repository, made):
    version = made()
    version.manifest = dataclasses.replace(version.manifest, tables=version.manifest.tables[:1])
    assert gate(repository, version)["reported"] == ["table 'tag' is missing, which version 1 has"]


@pytest.mark.parametrize(
    ("users", "line"),
    [
        (range(400), "table 'user' has 400 rows, version 1 has 1,000"),
        (range(900, 1900), "table 'user' has a row for 10.0% of the ids of version 1"),
    ],
)
def test_lost_rows_and_other_ids_are_reported(repository, made, monkeypatch, users, line):
    monkeypatch.setattr(unlabelled_review, "CHUNK_IDS", 64)
    assert gate(repository, made(users))["reported"] == [line]


def test_first_version_says_that_it_is_compared_with_none(tmp_path, made):
    (tmp_path / "empty").mkdir()
    notes = gate(Repository(tmp_path / "empty"), made())
    assert notes["unjudged"][-1] == "no version to compare with"


def test_unreadable_version_before_is_said(repository, made):
    version = made()
    for path in repository.path("small", 1).rglob("*.safetensors"):
        path.unlink()
    assert gate(repository, version)["unjudged"][-1] == "the version before cannot be read"
