"""Every room (folder with an __init__.py) says what it is for, what is in it, and which of it other rooms may import.

A room's docstring has a line `name  what it is` for each of its modules and rooms, and its __all__ the modules that are
imported from outside, or, where it exports names, those names; its imports list them where names load on first use.
Benchmarks and peers measure the engine, and generators write pages of it, so these may look into all of it.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.module_names import own_name

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving", "processor", "compiler", "models", "serving", "loadtest", "generators")
ROOMS = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for floor in FLOORS[1:]
    for path in (ROOT / floor).rglob("__init__.py")
    # A new extension changes no other file.
    if path.parent.name != "extensions"
)
LOOK_INSIDE = ("loadtest.bench.", "loadtest.peers.", "generators.")


def folder(room):
    return ROOT.joinpath(*room.split("."))


@cache
def head(room):
    """(docstring, exported names) of a room."""
    tree = ast.parse((folder(room) / "__init__.py").read_text())
    docstring, exported = ast.get_docstring(tree) or "", None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return docstring, ast.literal_eval(node.value)
        if isinstance(node, ast.If) and "lazy_names(" in ast.unparse(node):
            exported = [alias.name for imported in node.body for alias in imported.names]
    return docstring, exported


def members(room):
    """Modules and rooms that lie in a room."""
    files = {path.stem for path in folder(room).glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in folder(room).glob("*/__init__.py")}


def statements(node):
    """Yield the statements within a node: what they hold of expressions imports nothing."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()):
            yield inner
            yield from statements(inner)


@cache
def imports():
    """(importing module, imported name in full) over all floors."""
    found = set()
    for path in (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update((module, own_name(alias.name)) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.update((module, own_name(f"{node.module}.{alias.name}")) for alias in node.names)
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_package_docstring_describes_each_of_its_modules(room):
    docstring, _ = head(room)
    lines = dict(re.findall(r"^([a-z]\w*)  +(\S.*)$", docstring, re.M))

    assert docstring.split("\n")[0].endswith("."), f"{room}: what is it for?"
    assert members(room) - set(lines) == set(), f"{room}/__init__.py lacks these lines"
    assert set(lines) - members(room) == set(), f"{room}/__init__.py has lines of what is gone"


@pytest.mark.parametrize("room", ROOMS)
def test_other_packages_import_only_exported_names(room):
    _, offered = head(room)
    used = {
        name.removeprefix(f"{room}.").partition(".")[0]
        for module, name in imports()
        if name.startswith(f"{room}.")
        and not f"{module}.".startswith(f"{room}.")
        and not (module.startswith(LOOK_INSIDE) and not room.startswith("loadtest"))
    }

    assert offered is not None, f"{room}/__init__.py has no __all__"
    assert used - set(offered) == set(), f"imported from outside; if that is meant, into {room}.__all__ with them"


def exported_names(room):
    """Return the names of a room's __all__ that are none of its modules."""
    return set(head(room)[1] or ()) - members(room)


@pytest.mark.parametrize("room", [room for room in ROOMS if exported_names(room)])
def test_exported_name_is_used_elsewhere(room):
    elsewhere = {name for module, name in imports() if not f"{module}.".startswith(f"{room}.")}
    assert [name for name in sorted(exported_names(room)) if f"{room}.{name}" not in elsewhere] == []


def test_a_modules_own_name_has_no_prefix_of_the_import():
    assert own_name("freshet_serving.processor.clock") == "processor.clock"
    assert own_name("freshet_serving.strangers") == "freshet_serving.strangers"
