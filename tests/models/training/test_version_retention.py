"""Which full versions may go, and that a version goes whole."""

import dataclasses
import shutil

import pytest

from freshet_serving.models.training.version_retention import NOTE, removable, remove_version
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import storage
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.processor.repository.version import MANIFEST, VersionReader
from tests.support.packages import write_package


def publish(root, *numbers, ours=True):
    for number in numbers:
        folder = write_package(root, version=number)
        if ours:
            manifest = VersionReader(folder).root_manifest
            (folder / MANIFEST).write_bytes(dataclasses.replace(manifest, notes=dict(NOTE)).to_json())


@pytest.fixture
def repository(tmp_path):
    publish(tmp_path, 1, 2, 3, 4, 5)
    return Repository(tmp_path)


@pytest.mark.parametrize(
    ("keep", "trained", "gone"),
    [(3, 5, [1, 2]), (5, 5, []), (9, 5, []), (0, 5, [1, 2, 3]), (1, 5, [1, 2, 3]), (2, 2, [1, 3])],
)
def test_newest_previous_and_trained_versions_stay(repository, keep, trained, gone):
    assert removable(repository, "small", keep, trained) == gone


def test_labelled_version_stays(repository):
    repository.keep_labels("small", {"stable": 2})
    assert removable(repository, "small", 2, 5) == [1, 3]


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        ({"versions": [1, 3]}, [2]),
        ({"versions": "latest:4"}, [1]),
        ({"versions": "all"}, []),
        ({"labels": {"canary": 1}}, [2, 3]),
        ({"max_rows": 7}, [1, 2, 3]),
    ],
)
def test_version_named_by_the_saved_policy_stays(repository, policy, gone):
    repository.keep_traffic("small", {"policy": policy})
    assert removable(repository, "small", 2, 5) == gone


def test_version_that_servers_went_back_to_stays(repository):
    for number in (3, 4, 5):
        root = repository.root_of("small", number)
        repository.version_records("small").add(number, root, "withdraw")
    assert removable(repository, "small", 2, 5) == [3]
    repository.keep_traffic("small", {"policy": {"versions": "latest:1"}})
    assert removable(repository, "small", 2, 5) == [3]


def test_unreadable_policy_allows_no_removal(repository):
    repository.keep_traffic("small", {"policy": {"versions": "newest"}})
    with pytest.raises(BadInput, match=r"policy\.versions"):
        removable(repository, "small", 2, 5)


def test_foreign_files_and_links_stay(tmp_path, repository):
    shutil.rmtree(tmp_path / "small" / "2")
    publish(tmp_path, 2, ours=False)
    (tmp_path / "small" / "3" / MANIFEST).write_bytes(b"{}")
    (tmp_path / "small" / "1").rename(tmp_path / "elsewhere")
    (tmp_path / "small" / "1").symlink_to(tmp_path / "elsewhere")
    assert removable(repository, "small", 2, 5) == []


def test_removed_version_leaves_nothing_behind(tmp_path, repository):
    remove_version(repository, "small", 1)
    assert repository.versions("small") == [2, 3, 4, 5]
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == ["2", "3", "4", "5"]


def test_kill_during_removal_leaves_the_version_hidden(tmp_path, repository, monkeypatch):
    def killed(folder, ignore_errors):
        raise KeyboardInterrupt

    monkeypatch.setattr(storage.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_version(repository, "small", 1)
    assert repository.versions("small") == [2, 3, 4, 5]
    (hidden,) = (path.name for path in (tmp_path / "small").glob(".*"))
    assert hidden.startswith(".1.")
    # By which `freshet repository prune` and the next run know it.
    assert hidden.endswith(".tmp")
