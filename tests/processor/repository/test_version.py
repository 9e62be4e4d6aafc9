"""A version's folder: there whole or not at all, and verified to the last byte."""

import json
import os

import pytest

from freshet_serving.processor.errors import Corrupt, FreshetError, NotFound
from freshet_serving.processor.repository.version import DENSE, MANIFEST, VersionReader, table_file
from tests.support.packages import write_package


@pytest.fixture
def package(tmp_path):
    return write_package(tmp_path / "repository")


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
