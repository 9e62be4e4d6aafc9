"""Executables of training in the user's cache: used for what they were compiled for, and for nothing else."""

import os

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="needs the xla extra")

from freshet_serving.compiler.backends import executable_store, xla_function
from freshet_serving.compiler.backends.xla_function import ArraySpec, XlaFunction, device_put


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "freshet" / "executables"


@pytest.fixture
def compiled(monkeypatch):
    """How often XLA compiles."""
    device, times = xla_function.device("cpu", 1), []
    monkeypatch.setattr(type(device), "compile", _counting(type(device).compile, times))
    return times


def _counting(compile, times):
    def counted(self, stablehlo):
        times.append(1)
        return compile(self, stablehlo)

    return counted


def made(factor=3.0):
    """A function as another process would have it."""
    xla_function._compiled.cache_clear()
    return XlaFunction(lambda x: [x * factor], [ArraySpec((4,))], threads=1)


def value(function):
    (result,) = function([device_put(np.arange(4, dtype=np.float32), 1)])
    return result.view().tolist()


def test_second_process_compiles_nothing(folder, compiled):
    assert value(made()) == [0, 3, 6, 9]
    assert len(list(folder.iterdir())) == 1
    assert value(made()) == [0, 3, 6, 9]
    assert len(compiled) == 1


def test_another_program_or_other_flags_are_compiled(folder, compiled, monkeypatch):
    made()
    assert value(made(5.0)) == [0, 5, 10, 15]
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
    made(5.0)
    assert (len(compiled), len(list(folder.iterdir()))) == (3, 3)


@pytest.mark.parametrize("damage", [b"", b"\0" * 100])
def test_damaged_file_is_compiled_anew(folder, compiled, damage):
    made()
    (path,) = folder.iterdir()
    path.write_bytes(damage)
    assert value(made()) == [0, 3, 6, 9]
    assert len(compiled) == 2
    assert path.stat().st_size > len(damage)


def test_file_that_others_may_write_is_not_read(folder, compiled):
    made()
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert value(made()) == [0, 3, 6, 9]
    assert len(compiled) == 2


def test_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch, compiled):
    (tmp_path / "freshet").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert value(made()) == [0, 3, 6, 9]


def test_only_the_files_used_last_are_kept(folder, compiled, monkeypatch):
    monkeypatch.setattr(executable_store, "MOST_FILES", 2)
    for n, factor in enumerate((2.0, 3.0, 4.0)):
        made(factor)
        for path in folder.iterdir():
            if path.stat().st_mtime > 1e6:
                os.utime(path, (n, n))
    assert len(list(folder.iterdir())) == 2
    made(4.0)
    made(2.0)
    assert len(compiled) == 4


def traced(settings, factor=3.0):
    """How often a function was traced, and what it computes."""
    times = []

    def function(x):
        times.append(1)
        return [x * factor, x + 1.0]

    made = XlaFunction(function, [ArraySpec((4,))], 1, settings)
    results = made([device_put(np.arange(4, dtype=np.float32), 1)])
    return len(times), [result.view().tolist() for result in results]


def test_a_function_of_known_settings_is_traced_once(folder):
    first = traced("some settings")
    assert first[0] > 0
    assert traced("some settings") == (0, first[1])
    assert traced("others")[0] > 0
    assert traced("")[0] > 0
    assert len(list(folder.glob("*.program"))) == 2


def test_other_code_and_damaged_programs_are_not_used(folder, monkeypatch):
    first = traced("some settings")
    (path,) = folder.glob("*.program")
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert traced("some settings") == first
    monkeypatch.setattr(executable_store, "_code", lambda: b"other")
    assert traced("some settings")[0] > 0
