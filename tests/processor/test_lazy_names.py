import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

from freshet_serving.processor.lazy_names import lazy_names

ROOT = Path(__file__).parents[2]
LAZY = [path for path in (ROOT / "processor").rglob("__init__.py") if "lazy_names(" in path.read_text()]


def room_of(path):
    return ".".join(("freshet_serving", *path.parent.relative_to(ROOT).parts))


def both_lists(path):
    """The names by module that a type checker reads, and those that are loaded on first use."""
    room, tree = room_of(path), ast.parse(path.read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    for_checkers = {node.module.removeprefix(f"{room}."): {alias.name for alias in node.names} for node in branch.body}
    table = ast.literal_eval(branch.orelse[0].value.args[1])
    return for_checkers, {module: set(names.split()) for module, names in table.items()}


@pytest.mark.parametrize("path", LAZY, ids=room_of)
def test_type_checkers_and_programs_find_the_same_names(path):
    for_checkers, loaded = both_lists(path)
    assert for_checkers == loaded


@pytest.mark.parametrize("path", LAZY, ids=room_of)
def test_each_exported_name_loads(path):
    room = import_module(room_of(path))
    names = [name for exported in both_lists(path)[1].values() for name in exported]
    assert [name for name in names if not hasattr(room, name)] == []


@pytest.mark.parametrize("path", LAZY, ids=room_of)
def test_no_module_hides_an_exported_name(path):
    modules = {file.stem for file in path.parent.iterdir()}
    names = set().union(*both_lists(path)[1].values())
    assert modules & names == set()


def test_name_loads_its_module_on_first_use(tmp_path, monkeypatch):
    package = tmp_path / "toy_room"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_room", raising=False)
    room = import_module("toy_room")

    load = lazy_names("toy_room", {"one": "ONE"})
    assert "toy_room.one" not in sys.modules
    assert load("ONE") == room.ONE == 1
    with pytest.raises(AttributeError, match="module 'toy_room' has no attribute 'TWO'"):
        load("TWO")
    del sys.modules["toy_room"], sys.modules["toy_room.one"]
