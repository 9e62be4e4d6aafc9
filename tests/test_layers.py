"""Floors, rooms and extensions: what imports what, read from the code. Arrows run down only, and in no circle.

A room is a folder of a floor, or a module that lies flat in it. An extension is a folder of processor/extensions or
serving/extensions; all else of these floors is the core. Nothing here lists rooms or extensions: a new one needs no
line. Imports count wherever they stand, those for type checkers with them.
"""

import ast
import graphlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.affected.changes import here
from tests.support.module_names import LINKED, own_name

ROOT = Path(__file__).parents[1]
FLOORS = ("freshet_serving", "serving", "models", "compiler", "processor", "loadtest", "generators")
MAY_IMPORT = {
    "processor": {"processor"},
    "compiler": {"compiler", "processor"},
    "models": {"models", "compiler", "processor"},
    "serving": {"serving", "processor"},
    "freshet_serving": {"freshet_serving", "serving", "models", "processor"},
    "loadtest": {"loadtest"},
}
MOST_FLAT = 14
# Commands, those of extensions too, lead to every floor below the way in; benchmarks measure the engine in its own
# process; generators read what they write pages of.
WIDE = {
    "serving/commands/": {"serving", "models", "compiler", "processor"},
    "loadtest/bench/": set(FLOORS),
    "generators/": set(FLOORS),
}
# Peers must compute with the very same kernels and executables, or computing would be compared instead of serving.
SAME_KERNELS = {"loadtest/peers/same_kernels.py"}
CORE = ("freshet_serving/", "serving/", "processor/")
SECTIONS = ("section", "sections")
"""Modules of an extension that training and compiling may import."""
HEAVY = {
    "tensorflow",
    "keras",
    "torch",
    "jax",
    "openvino",
    "onnxruntime",
    "tensorrt",
    "onnx",
    "tf2onnx",
    "redis",
    "mpi4py",
}
HEAVY_HOMES = (
    "processor/backends/",
    "compiler/backends/",
    "compiler/frameworks.py",
    "compiler/imports/onnx_graph/",
    "compiler/imports/onnx_native/",
    "models/parallel/mpi_ranks.py",
    "models/publishing/keras_callback.py",
    "models/publishing/torch_hook.py",
    "models/streams/redis_stream.py",
    "processor/extensions/online_features/redis_",
    "loadtest/bench/bench_features.py",
    "processor/extensions/redis/",
    "processor/extensions/remote_rows/redis.py",
    "loadtest/peers/fastapi_tf/",
    "loadtest/bench/foreign_models/builders/",
    "loadtest/bench/training/follow_race.py",
    "loadtest/bench/training/fuxictr_din_side.py",
    "loadtest/bench/training/rectools_side.py",
    "loadtest/bench/training/torch_side.py",
)


def sources(*floors):
    """The paths of the modules of floors."""
    return [path for path in here().paths if path.partition("/")[0] in (floors or FLOORS)]


@cache
def imports(path):
    """The dotted names that a module imports, wherever in it."""
    facts = here().facts(path)
    names = set().union(*(part.imports for part in facts.parts.values()), facts.typed.values())
    return {own_name(name) for name in names}


@cache
def arrows(path):
    """The files that a module imports."""
    return {other for name in imports(path) if (other := here().module(name))} - {path}


def room_of(path):
    """`floor/room` of a module; empty for what lies in no room."""
    floor, _, rest = path.partition("/")
    room = rest.partition("/")[0].removesuffix(".py")
    return "" if room == "__init__" else f"{floor}/{room}"


def extension_of(path):
    """The extension that a module is of; empty for the core."""
    parts = path.split("/")
    return parts[2] if parts[1] == "extensions" and len(parts) > 3 else ""


def rooms_below(floor):
    """Each room of a floor, and the rooms of the floor that it imports."""
    below = {}
    for path in sources(floor):
        beside = {room_of(other) for other in arrows(path) if other.startswith(f"{floor}/")}
        below.setdefault(room_of(path), set()).update(beside - {room_of(path), ""})
    return below


def circle_of(below):
    """What leads back to itself; none if nothing does."""
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def requires(extension):
    """The extensions that one names in the line REQUIRES of an __init__.py of it."""
    names = set()
    for floor in ("processor", "serving"):
        path = ROOT / floor / "extensions" / extension / "__init__.py"
        for node in ast.parse(path.read_text()).body if path.is_file() else ():
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "REQUIRES":
                names |= set(ast.literal_eval(node.value))
    return names


EXTENSIONS = sorted({extension_of(path) for path in sources("processor", "serving")} - {""})


def test_modules_import_only_from_their_own_layer_or_below():
    upward = []
    for path in sources():
        floor = path.partition("/")[0]
        folder = next((folder for folder in WIDE if path.startswith(folder)), "")
        if path.startswith("serving/extensions/") and path.endswith(("_command.py", "_commands.py")):
            folder = "serving/commands/"
        allowed = WIDE[folder] if folder else MAY_IMPORT.get(floor, set())
        if path in SAME_KERNELS:
            allowed = allowed | {"processor"}
        used = {name.partition(".")[0] for name in imports(path)} & set(FLOORS)
        upward += [f"{path}: {name}" for name in sorted(used - allowed)]
    assert upward == []


def test_heavy_libraries_are_imported_in_few_places():
    used = {path: {name.partition(".")[0] for name in imports(path)} & HEAVY for path in sources()}
    assert {path: names for path, names in used.items() if names and not path.startswith(HEAVY_HOMES)} == {}


@pytest.mark.parametrize("floor", FLOORS)
def test_rooms_of_a_floor_import_in_no_circle(floor):
    assert circle_of(rooms_below(floor)) == []


def test_modules_of_a_room_import_in_no_circle():
    rooms = {}
    for path in sources():
        rooms.setdefault(room_of(path), set()).add(path)
    circles = [circle_of({path: arrows(path) & inside for path in inside}) for room, inside in rooms.items() if room]
    assert [circle for circle in circles if circle] == []


@pytest.mark.parametrize("floor", FLOORS)
def test_few_modules_lie_flat_in_a_floor(floor):
    flat = [path for path in sources(floor) if path.count("/") == 1 and not path.endswith("__.py")]
    assert len(flat) <= MOST_FLAT


def test_core_imports_no_extension():
    core = [path for path in sources() if path.startswith(CORE) and not extension_of(path)]
    assert [(path, other) for path in core for other in arrows(path) if extension_of(other)] == []


def test_training_and_compiling_import_only_sections_of_extensions():
    used = [(path, other) for path in sources("models", "compiler") for other in arrows(path) if extension_of(other)]
    assert [arrow for arrow in used if PurePosixPath(arrow[1]).stem not in SECTIONS] == []


def test_extensions_import_only_what_they_require():
    """The two halves of an extension, of the engine and of the server, have one name and count as one."""
    undeclared = [
        (path, other)
        for path in sources("processor", "serving")
        for other in arrows(path)
        if extension_of(path) and extension_of(other)
        and extension_of(other) not in {extension_of(path), *requires(extension_of(path))}
    ]  # fmt: skip
    assert undeclared == []


def test_extensions_require_others_that_exist_in_no_circle():
    required = {extension: requires(extension) - {extension} for extension in EXTENSIONS}
    assert set().union(*required.values()) - set(EXTENSIONS) == set()
    assert circle_of(required) == []


def test_top_folders_are_imported_as_parts_of_freshet_serving():
    """A second import under the bare name would be another copy of every class; a relative one is read by no guard."""
    bare = re.compile(rf"^\s*(?:from|import) (?:\.|(?:{'|'.join(LINKED)})\b)", re.M)
    paths = [*sources(), *(path for path in here().paths if path.startswith("tests/"))]
    # What only looks like an import stands in a string.
    likely = [path for path in paths if bare.search((ROOT / path).read_text())]
    nodes = [(path, node) for path in likely for node in ast.walk(ast.parse((ROOT / path).read_text()))]
    assert [path for path, node in nodes if isinstance(node, ast.ImportFrom) and bare.match(ast.unparse(node))] == []
    assert [path for path, node in nodes if isinstance(node, ast.Import) and bare.match(ast.unparse(node))] == []


def test_package_format_needs_only_numpy():
    code = (
        "import sys, freshet_serving.processor.repository.version, freshet_serving.processor.package.delta\n"
        "heavy = {'numba', 'tensorflow', 'onnxruntime', 'xxhash', 'fastapi'}\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


LOADED = """
import importlib, json, os, sys

def files():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("freshet_serving")]
    return {os.path.realpath(file) for module in modules if (file := getattr(module, "__file__", None))}

counts = []
for name in ("processor.engine", "serving.server"):
    importlib.import_module(f"freshet_serving.{name}")
    ours = [file for file in files() if "/processor/kernels/" not in file]
    counts.append([len(ours), sum(len(open(file).readlines()) for file in ours)])
print(json.dumps(counts))
"""
MOST_LOADED = {"engine": (109, 22_500), "server": (188, 36_500)}
"""Files and lines that importing loads, without extensions and without kernels: stored code may name more of these."""


def test_engine_and_server_load_no_more_than_they_did():
    environment = {**os.environ, "FRESHET_EXTENSIONS": "none"}
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, env=environment, capture_output=True, check=True)
    for (name, (most_files, most_lines)), (files, lines) in zip(MOST_LOADED.items(), json.loads(done.stdout)):
        assert files <= most_files, f"{name} loads {files} files: load what few need where it begins"
        assert lines <= most_lines, f"{name} loads {lines} lines: load what few need where it begins"
