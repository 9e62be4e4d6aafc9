import subprocess
import sys

import pytest

from freshet_serving.processor.backends import builtin, load_backend, registry
from freshet_serving.processor.errors import BadInput

LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "xla": "jaxlib", "tensorrt": "tensorrt"}


@pytest.mark.parametrize("name", builtin())
def test_backend_is_loaded_by_its_name(name):
    pytest.importorskip(LIBRARIES[name], reason="the library is not installed")
    backend = load_backend(name)
    assert backend.name == name
    assert backend.library.split()[0] == LIBRARIES[name]


@pytest.mark.parametrize("name", builtin())
def test_missing_library_error_names_the_package_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    with pytest.raises(
        BadInput, match=rf"^backend {name}: the library {LIBRARIES[name]} is not installed: .*pip install"
    ):
        load_backend(name)


def test_unknown_backend_error_lists_the_known_ones():
    with pytest.raises(BadInput, match=r"backend: expected one of .*onnxruntime, openvino.*, got 'abacus'"):
        load_backend("abacus")


class Point:
    """An entry point."""

    def __init__(self, name, load):
        self.name, self.load = name, load


def test_third_party_backends_register_as_entry_points(monkeypatch):
    class Abacus:
        name, library = "abacus", "beads 1.0"

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point("abacus", lambda: Abacus)])
    assert load_backend("abacus").library == "beads 1.0"


def test_unloadable_third_party_backend_gives_a_one_line_error(monkeypatch):
    def broken():
        raise ImportError("no such thing")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point("abacus", broken)])
    with pytest.raises(BadInput, match="backend abacus: the plug-in is installed, but cannot be loaded"):
        load_backend("abacus")


def test_backend_libraries_are_imported_only_on_demand():
    code = (
        "import sys; from freshet_serving.processor.backends.registry import builtin; builtin();"
        f"sys.exit(bool({set(LIBRARIES.values())} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_other_backends_than_the_one_asked_for_stay_unloaded():
    code = (
        "import sys; from freshet_serving.processor.backends.registry import load_backend; load_backend('onnxruntime');"
        "print(*sorted(name.split('.')[-1] for name in sys.modules if 'processor.backends.' in name))"
    )
    pytest.importorskip("onnxruntime", reason="the library is not installed")

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == [
        "base",
        "onnxfile",
        "onnxruntime",
        "registry",
    ]


def test_module_without_a_backend_is_no_backend():
    with pytest.raises(BadInput, match=r"backend: expected one of .*, got 'capsule'"):
        load_backend("capsule")


def test_registry_finds_exactly_the_backends_of_the_folder():
    assert builtin().keys() == LIBRARIES.keys()
