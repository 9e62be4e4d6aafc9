"""Version folders with leading zeros, and two folders that mean one number."""

import logging

from freshet_serving.processor.repository import Repository, VersionReader
from tests.support.packages import write_package


def put(root, name, model="small"):
    folder = root / model / name
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    return folder


def test_versions_in_zero_padded_folders_are_found_and_opened(tmp_path):
    written = write_package(tmp_path, version=123)
    written = getattr(written, "folder", written)
    padded = tmp_path / written.parent.name / "00000123"
    written.rename(padded)
    repository = Repository(tmp_path)
    assert repository.versions(padded.parent.name) == [123]
    reader = repository.version(padded.parent.name, 123)
    assert isinstance(reader, VersionReader)
    assert reader.folder == padded
    assert reader.manifest.version == 123
    assert repository.storage(padded.parent.name, 123).folder == padded


def test_saved_model_in_a_zero_padded_folder_is_importable(tmp_path):
    folder = tmp_path / "half" / "00000123"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    assert Repository(tmp_path).sources("half") == {123: folder}
    # Another process opens the repository without having listed it.
    assert Repository(tmp_path).path("half", 123) == folder


def test_two_folders_with_one_number_are_refused_and_logged_once(tmp_path, caplog):
    put(tmp_path, "1"), put(tmp_path, "0001"), put(tmp_path, "002")
    repository = Repository(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert [repository.versions("small") for _ in range(3)] == [[2]] * 3
        assert Repository(tmp_path).versions("small") == [2]
    assert [r.getMessage() for r in caplog.records] == [
        "small version 1: expected one folder, got 0001 and 1: remove all but one"
    ]
    assert repository.uncommitted("small") == {}


def test_known_version_keeps_its_folder_when_a_second_one_appears(tmp_path, caplog):
    first = put(tmp_path, "0001")
    repository = Repository(tmp_path)
    assert repository.versions("small") == [1]
    put(tmp_path, "1")
    assert repository.versions("small") == [1]
    assert repository.path("small", 1) == first
    assert len(caplog.records) == 1


def test_zero_and_overlong_numbers_are_not_versions(tmp_path):
    for name in ("0", "000", "0" * 18 + "1", "1" * 19, "1a", "-1"):
        put(tmp_path, name)
    assert Repository(tmp_path).versions("small") == []
    assert Repository(tmp_path).path("small", 7) == tmp_path / "small" / "7"
