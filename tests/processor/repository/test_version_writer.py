"""A version's folder: there whole or not at all, and verified to the last byte."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.repository import version_writer as writer_module
from freshet_serving.processor.repository.version import DENSE, MANIFEST, VersionReader, table_file
from freshet_serving.processor.repository.version_writer import VersionWriter
from tests.support.packages import manifest, write_package


@pytest.fixture
def package(tmp_path):
    return write_package(tmp_path / "repository")


def entries(folder):
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_version_becomes_visible_only_at_its_commit(tmp_path):
    target = tmp_path / "small" / "1"
    with VersionWriter(tmp_path, "small", 1) as writer:
        writer.tensors(DENSE, {"w": np.zeros(3, np.float32)})
        assert not target.exists()
        assert all(name.startswith(".") for name in entries(tmp_path / "small"))
    assert entries(tmp_path / "small") == []
    folder = write_package(tmp_path)
    assert folder == target
    assert entries(tmp_path / "small") == ["1"]
    assert {"model.json", "tables", "dense.safetensors", "compiled", "deltas"} == set(entries(folder))


def test_manifest_and_all_files_exist_before_the_rename(tmp_path, monkeypatch):
    seen = []
    rename = writer_module.Path.rename

    def watch(source, target):
        files = json.loads((source / MANIFEST).read_bytes())["files"]
        seen.append(all((source / name).stat().st_size == f["nbytes"] for name, f in files.items()))
        return rename(source, target)

    monkeypatch.setattr(writer_module.Path, "rename", watch)
    write_package(tmp_path)
    assert seen == [True]


def test_error_inside_the_block_leaves_nothing_behind(tmp_path):
    def build():
        with VersionWriter(tmp_path, "small", 1) as writer:
            writer.tensors(table_file("user"), {"keys": np.zeros(3, np.int64)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert entries(tmp_path) == []


def test_refused_version_leaves_the_folder_of_a_model_that_was_there(tmp_path):
    (tmp_path / "small").mkdir()
    with pytest.raises(KeyboardInterrupt), VersionWriter(tmp_path, "small", 1):
        raise KeyboardInterrupt
    assert entries(tmp_path) == ["small"]


def test_refused_manifest_commits_nothing(tmp_path):
    with pytest.raises(BadInput, match="executables"), VersionWriter(tmp_path, "small", 1) as writer:
        writer.commit(manifest())
    assert entries(tmp_path) == []


def test_existing_version_is_a_conflict_from_the_start(package):
    before = (package / MANIFEST).read_bytes()
    with pytest.raises(Conflict, match="version 1 of 'small' already exists"):
        VersionWriter(package.parent.parent, "small", 1)
    assert (package / MANIFEST).read_bytes() == before
    assert entries(package.parent) == ["1"]


def test_second_of_two_writers_to_commit_gets_a_conflict(tmp_path):
    with VersionWriter(tmp_path, "small", 1) as late:
        folder = write_package(tmp_path)
        before = (folder / MANIFEST).read_bytes()
        (late.folder / "compiled/onnxruntime-cpu").mkdir(parents=True)
        for bucket in (1, 4, 16):
            (late.folder / f"compiled/onnxruntime-cpu/b{bucket}.onnx").write_bytes(b"x")
        with pytest.raises(Conflict, match="already exists"):
            late.commit(manifest())
    assert (folder / MANIFEST).read_bytes() == before
    assert entries(tmp_path / "small") == ["1"]


def test_version_can_be_written_next_to_its_source_model(tmp_path):
    folder = tmp_path / "small" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"source")
    (folder / "tables").mkdir()
    (folder / "tables" / "stale").write_bytes(b"left by an earlier try")
    with VersionWriter(tmp_path, "small", 1, beside=True) as writer:
        writer.tensors("tables/user.safetensors", {"keys": np.zeros(1, np.int64)})
        assert not (folder / MANIFEST).exists()
        assert writer.commit(replace(manifest(), executables=[])) == folder

    assert (folder / "saved_model.pb").read_bytes() == b"source"
    assert [p.name for p in (folder / "tables").iterdir()] == ["user.safetensors"]
    assert list(VersionReader(folder).manifest.files) == ["tables/user.safetensors"]
    assert [p.name for p in (tmp_path / "small").iterdir()] == ["1"]
    with pytest.raises(Conflict):
        VersionWriter(tmp_path, "small", 1, beside=True)
