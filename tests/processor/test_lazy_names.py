import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from freshet_serving.processor.lazy_names import lazy_names

ROOT = Path(__file__).parents[2]
LAZY = [path for path in (ROOT / "processor").rglob("__init__.py") if "lazy_names(" in path.read_text()]


def room_of(path):
    return ".".join(("freshet_serving", *path.parent.relative_to(ROOT).parts))


def exported(path):
    """The names that a room's imports list, by module."""
    branch = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If))
    return {node.module: [alias.name for alias in node.names] for node in branch.body}


@pytest.mark.parametrize("path", LAZY, ids=room_of)
def test_each_exported_name_loads_from_its_module(path):
    room, names = import_module(room_of(path)), exported(path)
    assert [module for module in names.pop(room_of(path)) if find_spec(f"{room_of(path)}.{module}") is None] == []
    for module, names_of_module in names.items():
        owner = import_module(module)
        assert [name for name in names_of_module if getattr(room, name) is not getattr(owner, name)] == []


@pytest.mark.parametrize("path", LAZY, ids=room_of)
def test_no_module_hides_an_exported_name(path):
    modules = {file.stem for file in path.parent.iterdir()}
    names = {name for module, names in exported(path).items() if module != room_of(path) for name in names}
    assert modules & names == set()


def test_name_loads_its_module_on_first_use(tmp_path, monkeypatch):
    package = tmp_path / "toy_room"
    package.mkdir()
    listed = "    from toy_room import one\n    from toy_room.one import (\n        ONE,\n    )\n"
    (package / "__init__.py").write_text(listed)
    (package / "one.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_room", raising=False)
    file, room = package / "__init__.py", ModuleType("toy_room")
    room.__path__ = [str(package)]
    monkeypatch.setitem(sys.modules, "toy_room", room)

    load = lazy_names("toy_room", str(file))
    assert "toy_room.one" not in sys.modules
    assert load("ONE") == room.ONE == 1
    for name in ("TWO", "one"):
        with pytest.raises(AttributeError, match=f"module 'toy_room' has no attribute '{name}'"):
            load(name)
    del sys.modules["toy_room.one"]
