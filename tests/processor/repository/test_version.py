"""A version's folder: there whole or not at all, and verified to the last byte."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, FreshetError, NotFound
from freshet_serving.processor.repository import version as version_module
from freshet_serving.processor.repository.version import (
    DENSE,
    MANIFEST,
    VersionReader,
    VersionWriter,
    inside,
    table_file,
)
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
    rename = version_module.Path.rename

    def watch(source, target):
        files = json.loads((source / MANIFEST).read_bytes())["files"]
        seen.append(all((source / name).stat().st_size == f["nbytes"] for name, f in files.items()))
        return rename(source, target)

    monkeypatch.setattr(version_module.Path, "rename", watch)
    write_package(tmp_path)
    assert seen == [True]


def test_error_inside_the_block_leaves_nothing_behind(tmp_path):
    def build():
        with VersionWriter(tmp_path, "small", 1) as writer:
            writer.tensors(table_file("user"), {"keys": np.zeros(3, np.int64)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert entries(tmp_path / "small") == []


def test_refused_manifest_commits_nothing(tmp_path):
    with (
        pytest.raises(BadInput, match="executables"),
        VersionWriter(tmp_path, "small", 1) as writer,
    ):
        writer.commit(manifest())
    assert entries(tmp_path / "small") == []


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


def test_manifest_names_every_file_with_its_size_and_checksum(package):
    reader = VersionReader(package)
    on_disk = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}
    assert on_disk == {*reader.manifest.files, MANIFEST}
    assert all((package / n).stat().st_size == f.nbytes for n, f in reader.manifest.files.items())
    reader.verify()


def test_written_files_are_read_through_the_manifest(package):
    reader = VersionReader(package)
    assert reader.tensors(table_file("user"))["keys"].tolist() == list(range(20))
    assert {name: list(a.shape) for name, a in reader.dense().items()} == reader.manifest.dense
    assert reader.file("compiled/onnxruntime-cpu/b1.onnx")


def test_file_not_named_in_the_manifest_is_not_opened(package):
    (package / "extra.safetensors").write_bytes((package / DENSE).read_bytes())
    reader = VersionReader(package)
    for read in (reader.tensors, reader.file):
        for name in ("extra.safetensors", MANIFEST, "../../../etc/passwd"):
            with pytest.raises(Corrupt, match="the manifest does not name it"):
                read(name)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


damages = {
    "missing": lambda p: p.unlink(),
    "truncated": lambda p: os.truncate(p, p.stat().st_size - 1),
    "empty": lambda p: os.truncate(p, 0),
    "longer": lambda p: p.write_bytes(p.read_bytes() + b"\0"),
    "one bit": flip,
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a dangling link": lambda p: (p.unlink(), p.symlink_to("nowhere")),
    "a link to itself": lambda p: (p.unlink(), p.symlink_to(p.name)),
}


@pytest.mark.parametrize("name", [DENSE, table_file("tag"), "compiled/onnxruntime-cpu/b4.onnx"])
@pytest.mark.parametrize("damage", damages.values(), ids=damages.keys())
def test_every_kind_of_damage_to_every_file_is_detected(package, name, damage):
    damage(package / name)
    with pytest.raises(FreshetError) as refused:
        VersionReader(package).verify()
    assert str(package) not in str(refused.value)
    if not (package / name).is_symlink():
        assert name in str(refused.value)


def test_symbolic_link_leading_outside_is_refused_despite_valid_bytes(package, tmp_path):
    outside = tmp_path / "outside"
    (package / DENSE).rename(outside)
    (package / DENSE).symlink_to(outside)
    reader = VersionReader(package)
    with pytest.raises(NotFound, match="is a link, or lies behind one, whose target is outside"):
        reader.verify()
    for read in (reader.tensors, reader.file):
        with pytest.raises(NotFound, match="is a link"):
            read(DENSE)


def test_folder_link_that_leads_outside_is_refused(package, tmp_path):
    (package / "tables").rename(tmp_path / "tables")
    (package / "tables").symlink_to(tmp_path / "tables")
    with pytest.raises(NotFound, match="is a link"):
        VersionReader(package).verify()


def test_symbolic_link_inside_the_version_is_followed(package):
    (package / DENSE).rename(package / "elsewhere")
    (package / DENSE).symlink_to("elsewhere")
    VersionReader(package).verify()


def test_file_changed_after_verification_is_not_returned(package):
    reader = VersionReader(package)
    reader.verify()
    flip(package / "compiled/onnxruntime-cpu/b1.onnx")
    with pytest.raises(Corrupt, match="does not match its checksum"):
        reader.file("compiled/onnxruntime-cpu/b1.onnx")


@pytest.mark.parametrize("name", ["2", "02", "other"])
def test_manifest_of_a_different_folder_is_refused(package, name):
    moved = package.rename(package.with_name(name))
    with pytest.raises(Corrupt, match="is for 'small' version 1, not for its folder"):
        VersionReader(moved)


def test_manifest_of_a_different_model_is_refused(package):
    package.parent.rename(package.parent.with_name("large"))
    with pytest.raises(Corrupt, match="not for its folder"):
        VersionReader(package.parent.with_name("large") / "1")


def test_folder_without_a_manifest_is_not_a_version(package):
    (package / MANIFEST).unlink()
    with pytest.raises(NotFound, match="version 1: the manifest does not exist"):
        VersionReader(package)


def test_dense_tensors_that_do_not_match_the_manifest_are_refused(package):
    value = json.loads((package / MANIFEST).read_bytes())
    value["dense"]["mlp_0/bias"] = [9]
    (package / MANIFEST).write_text(json.dumps(value))
    with pytest.raises(Corrupt, match="expected the manifest's float32 tensors"):
        VersionReader(package).dense()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a\0b", "\udc80\0"])
def test_relative_path_never_leaves_its_root(tmp_path, path):
    with pytest.raises(NotFound) as refused:
        inside(tmp_path, path)
    assert str(tmp_path) not in str(refused.value)


def test_paths_that_stay_inside_are_resolved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    assert inside(tmp_path, "b/x/../y") == tmp_path.resolve() / "a" / "y"
    assert inside(tmp_path, "") == tmp_path.resolve()


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
