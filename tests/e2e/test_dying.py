"""The steps at which processes of kills die are there: the kills themselves run too rarely to notice that one moved."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KILLS = sorted(path for path in Path(__file__).parent.glob("test_*_kills.py") if "Step(" in path.read_text())


def steps(path):
    """The module and the name of each step that a file of kills names."""
    tree = ast.parse(path.read_text())
    texts = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, values = (getattr(part, "elts", [part]) for part in (node.targets[0], node.value))
            texts |= {target.id: value.value for target, value in zip(targets, values) if type(value) is ast.Constant}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Step")
    for call in calls:
        module, name = call.args[:2]
        yield texts[module.id] if isinstance(module, ast.Name) else module.value, name.value


def named_in(module, name):
    """Whether a module defines a function, or a class with that method, or imports it."""
    body = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text()).body
    for part in name.split("."):
        inside = [node for node in body if part in (getattr(node, "name", ""), *imported(node))]
        body = [inner for node in inside for inner in getattr(node, "body", ())]
    return bool(inside)


def imported(node):
    return [alias.asname or alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("path", KILLS, ids=lambda path: path.stem)
def test_every_step_of_kills_names_what_there_is(path):
    listed = list(steps(path))
    assert listed, "no step was read"
    assert [step for step in listed if not named_in(*step)] == []
