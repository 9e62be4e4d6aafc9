"""All kernels of the package become one file, which another process loads without compiling."""

import contextlib
import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.bytecode import FunctionIdentity

from freshet_serving.processor.kernels import bundling
from freshet_serving.processor.kernels.code_store import CodeStore

ROOT = Path(__file__).parents[3]
TOYS = "tests.processor.kernels.toys"
LOAD = f"""
import sys
from pathlib import Path
import numpy as np
from freshet_serving.processor.kernels import kernel
from freshet_serving.processor.kernels.code_store import Bundle, CodeStore

class Closed(CodeStore):
    def write(self, name, stamp, result):
        sys.exit(f"compiled {{name}}")

kernel.store = Closed(Bundle.read(Path(sys.argv[1]), "x86-64-v3"), [])
from {TOYS} import total, twice
print(total(np.arange(4)), twice(21))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A bundle of the toys."""
    monkeypatch.setattr(FunctionIdentity, "_unique_ids", FunctionIdentity._unique_ids)
    store = CodeStore(None, [])
    monkeypatch.setattr(bundling, "store", store)
    monkeypatch.setattr(importlib.import_module("freshet_serving.processor.kernels.kernel"), "store", store)
    monkeypatch.delitem(sys.modules, TOYS, raising=False)
    monkeypatch.setattr(bundling, "import_kernels", lambda title: importlib.import_module(TOYS))
    bundling.write_bundle(tmp_path / "compiled", "x86-64-v3")
    return tmp_path / "compiled"


def test_bundle_is_loaded_by_another_process_without_compiling(folder):
    done = subprocess.run([sys.executable, "-c", LOAD, folder], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("12 42\n", "")


def test_symbols_of_a_bundle_are_met_nowhere_else(folder):
    contents = (folder / "x86-64-v3.kernels").read_bytes()
    assert f"v{bundling.FIRST_NUMBER}".encode() in contents
    assert next(FunctionIdentity._unique_ids) > bundling.FIRST_NUMBER
    assert isinstance(FunctionIdentity._unique_ids, itertools.count)


def imported_by(monkeypatch, load):
    """Import all modules with kernels by `load`."""
    monkeypatch.setattr(bundling, "import_module", load)
    monkeypatch.setattr(bundling, "track", lambda files, title: files)
    bundling.import_kernels()


def test_every_module_with_kernels_is_imported(monkeypatch):
    imported = []
    imported_by(monkeypatch, imported.append)
    assert "freshet_serving.processor.kernels.pool" in imported
    assert "freshet_serving.models.embedding.kernels" in imported
    assert not any(name.endswith((".kernel", ".bundling", ".__main__")) for name in imported)


@pytest.mark.parametrize(
    ("library", "passed_over"),
    [("pyarrow", contextlib.nullcontext()), ("numpy", pytest.raises(ModuleNotFoundError))],
    ids=["of an extra", "of the core"],
)
def test_only_modules_that_need_an_extra_are_passed_over(monkeypatch, library, passed_over):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    with passed_over:
        imported_by(monkeypatch, missing)
