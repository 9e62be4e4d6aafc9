"""What is mutated: modules where a silent error would serve a wrong score or lose a delta; and the tests of each."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from random import Random

from tests.mutants.operators import Mutant, mutants
from tests.support.module_names import import_name, own_name
from tests.test_found import FLOORS, about_module

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
GROUPS = {
    "versions": ("processor/versions/*.py",),
    "tables": ("processor/tables/**/*.py",),
    "log": ("processor/repository/log/*.py",),
    "running": ("processor/running/*.py",),
    "features": ("processor/features/*.py",),
    "batcher": tuple(f"processor/sessions/{name}.py" for name in ("batcher", "split_request", "session", "group")),
    "codecs": ("serving/codecs/*.py",),
    "guard": (
        "processor/watching/verdicts.py",
        "processor/extensions/trials/canary_judge.py",
        "serving/extensions/admin/authorization.py",
    ),
    "access": ("serving/access/*.py",),
    "passes": ("compiler/passes/*.py",),
    "checkpoints": ("models/training/*.py",),
    "publishing": ("models/publishing/*.py",),
}
"""Modules by group, as patterns."""

ELSEWHERE = {
    "processor/sessions/session.py": ("tests/processor/running/test_graph_run.py",),
    "processor/features/bound_request.py": ("tests/processor/kernels/test_pool.py",),
    "processor/features/plan.py": ("tests/processor/kernels/test_pool.py",),
    "processor/features/binding.py": ("tests/processor/kernels/test_pool.py",),
    "processor/features/sources.py": ("tests/processor/kernels/test_pool.py",),
}
"""Tests that are about a module and lie in another room than its own."""


def modules() -> dict[str, list[str]]:
    """The modules of each group, as paths."""
    found = {}
    for group, patterns in GROUPS.items():
        paths = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)}
        found[group] = sorted(path for path in paths if not path.endswith("__init__.py"))
    return found


def tests_of(module: str) -> tuple[list[str], list[str]]:
    """The test files of a module, and those beside them, in the rooms of its tests, that have to do with it as well."""
    own, above = [*about_module(module), *ELSEWHERE.get(module, ())], importers(module)
    rooms = {Path(test).parent for test in own}
    beside = sorted(p.relative_to(ROOT).as_posix() for room in rooms for p in (ROOT / room).glob("test_*.py"))
    return own, [test for test in beside if test not in own and name_of(test) in above]


def chosen(module: str, most: int, seed: int) -> list[Mutant]:
    """So many mutants of a module, the same for the same seed, by line."""
    every = mutants((ROOT / module).read_text())
    drawn = Random(f"{seed} {module}").sample(range(len(every)), min(most, len(every)))
    return [every[n] for n in sorted(drawn)]


@cache
def equivalent() -> dict[tuple[str, str], str]:
    """Why a mutant is no other program: by module and name. Reviewed by hand."""
    return {
        (module, entry["mutant"]): entry["why"]
        for module, entries in tomllib.loads(EQUIVALENT.read_text()).items()
        for entry in entries
    }


@cache
def arrows() -> dict[str, set[str]]:
    """Each module of the floors and of the tests, and which of them it imports, wherever in it."""
    paths = [path for folder in (*FLOORS, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {name_of(path.relative_to(ROOT).as_posix()): path for path in paths}
    found = {}
    for name, path in names.items():
        used = {name.rpartition(".")[0]}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {own_name(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used |= {own_name(f"{node.module}{rest}") for rest in ("", *(f".{alias.name}" for alias in node.names))}
        # What is imported runs the packages above it first.
        above = {".".join(parts[:n]) for parts in (other.split(".") for other in used) for n in range(1, len(parts))}
        found[name] = {other for other in used | above if other in names} - {name}
    return found


def name_of(path: str) -> str:
    """The dotted name of a module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def reached(start: set[str], edges: dict[str, set[str]]) -> set[str]:
    """Everything that leads on from `start`, with it."""
    seen, stack = set(start), list(start)
    while stack:
        for other in edges.get(stack.pop(), ()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


@cache
def _back() -> dict[str, set[str]]:
    """Each module, and which of them import it."""
    back: dict[str, set[str]] = {}
    for name, used in arrows().items():
        for other in used:
            back.setdefault(other, set()).add(name)
    return back


def importers(module: str) -> set[str]:
    """A module's dotted name and those of all that import it, directly or not."""
    return reached({name_of(module)}, _back())


def beneath(module: str, tests: list[str]) -> tuple[list[str], list[str]]:
    """What a module's tests need and a mutant of it does not change: modules of ours, and libraries."""
    above = importers(module)
    needed = reached({name_of(test) for test in tests}, arrows())
    libraries = {library for name in needed & above for library in _libraries(name)}
    outside = {name for name in libraries if name.partition(".")[0] not in (*FLOORS, "tests")}
    # Test modules and their helpers are pytest's to import; a load test's import other people's event loops.
    ours = {name for name in needed - above if name.partition(".")[0] not in ("tests", "loadtest")}
    return sorted(import_name(name) for name in ours if not name.endswith("__main__")), sorted(outside)


@cache
def _libraries(name: str) -> frozenset[str]:
    """What a module imports at its top."""
    path = ROOT / f"{name.replace('.', '/')}.py"
    found = set()
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return frozenset(found)
