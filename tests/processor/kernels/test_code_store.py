"""Machine code is read where it is trusted and compiled from the same; it is written where it can be read again."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.kernels import code_store, kernel
from freshet_serving.processor.kernels.code_store import LEVELS, MAGIC, SUFFIX, Bundle, CodeStore, cache_folders

TOYS = Path(__file__).with_name("toys.py")


class Watched(CodeStore):
    """Counts the kernels that have to be compiled."""

    def __init__(self, folders):
        super().__init__(None, folders)
        self.compiled = 0

    def write(self, name, stamp, result):
        self.compiled += 1
        super().write(name, stamp, result)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(folders, old=new): import the toys under one name, after these changes; (module, number compiled)."""
    source = tmp_path / "toy_kernels.py"

    def imported(*folders, **changes):
        text = TOYS.read_text()
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new, 1)
        source.write_text(text)
        store = Watched(folders)
        monkeypatch.setattr(kernel, "store", store)
        kernel._source_digest.cache_clear()
        spec = importlib.util.spec_from_file_location("toy_kernels", source)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "toy_kernels", module)
        spec.loader.exec_module(module)
        assert module.total(np.arange(4)) == 6 * module.FACTOR
        return module, store.compiled

    return imported


def test_compiled_kernels_are_read_back(load, tmp_path):
    assert load(tmp_path / "cache")[1] == 2
    assert load(tmp_path / "cache")[1] == 0


def test_changed_source_compiles_its_kernels_again(load, tmp_path):
    load(tmp_path / "cache")
    assert load(tmp_path / "cache", FACTOR="FACTOR")[1] == 0
    assert load(tmp_path / "cache", **{"FACTOR = 2": "FACTOR = 3"})[1] == 2
    assert load(tmp_path / "cache")[1] == 2, "the newest code replaces the one before"


def test_stamp_follows_constants_and_called_kernels(load, tmp_path):
    module, _ = load(tmp_path / "cache")
    before = {name: getattr(module, name)._cache.stamp for name in ("twice", "total")}
    kernel._stamp.cache_clear()
    module.FACTOR = 5
    after = {name: getattr(module, name)._cache.stamp for name in ("twice", "total")}
    assert before["twice"] != after["twice"]
    assert before["total"] != after["total"], "a kernel depends on what the kernels that it calls use"


def test_code_in_a_folder_that_others_may_write_is_neither_read_nor_written(load, tmp_path):
    load(tmp_path / "cache")
    (tmp_path / "cache").chmod(0o777)
    assert load(tmp_path / "cache")[1] == 2
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    load(tmp_path / "cache")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before


def test_planted_file_is_never_unpickled(load, tmp_path):
    load(tmp_path / "cache")
    planted = next((tmp_path / "cache").glob(f"twice*{SUFFIX}"))
    planted.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    planted.chmod(0o666)
    assert load(tmp_path / "cache")[1] == 1
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("contents", [b"", b"\x80", b"garbage"])
def test_damaged_file_is_compiled_again(load, tmp_path, contents):
    load(tmp_path / "cache")
    next((tmp_path / "cache").glob(f"twice*{SUFFIX}")).write_bytes(contents)
    assert load(tmp_path / "cache")[1] == 1
    assert load(tmp_path / "cache")[1] == 0


def test_filled_folder_is_read_though_nothing_can_be_written(load, tmp_path, monkeypatch):
    load(tmp_path / "cache")
    monkeypatch.setattr(code_store, "_can_write", lambda folder: False)
    assert load(tmp_path / "empty", tmp_path / "cache")[1] == 0
    assert load(tmp_path / "empty")[1] == 2
    assert "NUMBA_CACHE_DIR" in kernel.store.kept


def test_full_disk_leaves_no_file_and_no_error(load, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(code_store.os, "replace", full)
    assert load(tmp_path / "cache")[1] == 2
    assert list((tmp_path / "cache").iterdir()) == []


def test_folders_are_the_chosen_one_the_package_and_the_cache_of_the_user():
    folders = cache_folders({"NUMBA_CACHE_DIR": "/chosen", "XDG_CACHE_HOME": "/home/ann/.cache"})
    assert folders == [Path("/chosen/freshet"), code_store.BUNDLES, Path("/home/ann/.cache/freshet/kernels")]


def test_user_without_a_home_has_no_cache_folder(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folders({}) == [code_store.BUNDLES]


def test_other_compiler_and_damaged_header_are_no_bundle(tmp_path):
    level = next(iter(LEVELS))
    Bundle.write(tmp_path, level, b"object", b"bitcode", [("name", "stamp", ("payload",))])
    bundle = Bundle.read(tmp_path, level)
    assert bundle.payload("name", "stamp") == ("payload",)
    assert bundle.payload("name", "other stamp") is None
    assert bundle.payload("other name", "stamp") is None
    path = tmp_path / f"{level}{SUFFIX}"
    contents = path.read_bytes()
    header = json.loads(contents[len(MAGIC) + 8 :].split(b"}}")[0] + b"}}")
    assert header["compilers"] == code_store.COMPILERS
    for damaged in (
        contents.replace(code_store.COMPILERS.encode(), b"x" * len(code_store.COMPILERS)),
        contents[: len(MAGIC) + 20],
        contents[:5],
        b"",
        b"other" + contents,
    ):
        path.write_bytes(damaged)
        assert Bundle.read(tmp_path, level) is None
    path.write_bytes(contents)
    path.chmod(0o666)
    assert Bundle.read(tmp_path, level) is None


def test_bundle_is_chosen_by_the_features_of_the_processor(tmp_path, monkeypatch):
    monkeypatch.setattr(code_store, "BUNDLES", tmp_path)
    for level in LEVELS:
        Bundle.write(tmp_path, level, b"", b"", [])
    features = dict.fromkeys(LEVELS["x86-64-v4"], True)
    monkeypatch.setattr(code_store, "_features", lambda: features)
    assert Bundle.here().level == "x86-64-v4"
    features["avx512vl"] = False
    assert Bundle.here().level == "x86-64-v3"
    features["avx2"] = False
    assert Bundle.here() is None
    features = dict.fromkeys(LEVELS["x86-64-v4"], True)
    monkeypatch.setattr(code_store, "PYTHONS", ((3, 8),))
    assert Bundle.here() is None


def test_missing_bundle_of_the_best_level_leaves_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(code_store, "BUNDLES", tmp_path)
    monkeypatch.setattr(code_store, "_features", lambda: dict.fromkeys(LEVELS["x86-64-v4"], True))
    assert Bundle.here() is None
    Bundle.write(tmp_path, "x86-64-v3", b"", b"", [])
    assert Bundle.here().level == "x86-64-v3"
    shutil.rmtree(tmp_path)
    assert Bundle.here() is None
