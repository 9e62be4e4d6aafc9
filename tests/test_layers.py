"""The floors of the house and the rooms of each floor: what imports what, read from the code. Arrows run down only."""

import ast
import graphlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.structure.sources import LINKED, own_name

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
# The rooms of each floor, folders and flat modules, from top to bottom: a room imports only rooms of lower levels.
LEVELS = {
    "freshet_serving": (("__main__",),),
    "processor": (
        ("capi",),
        ("engine",),
        ("explaining", "overview", "sessions"),
        ("versions",),
        ("running",),
        ("backends", "watching"),
        ("online_features", "tables"),
        ("eas",),
        ("features",),
        ("kernels",),
        ("repository",),
        ("cores", "generation", "options", "package"),
        ("extras",),
        ("redis_client", "standby_thread"),
        ("clock", "columns", "errors", "machine", "memory"),
    ),
    "compiler": (
        ("imports",),
        ("building",),
        ("backends", "passes"),
        ("dense",),
        ("frameworks", "progress"),
    ),
    "models": (
        ("bench",),
        ("parallel",),
        ("training",),
        ("runs",),
        ("evaluation", "streams"),
        ("config",),
        ("data", "embedding", "publishing", "zoo"),
    ),
    "serving": (
        ("commands",),
        ("server",),
        ("workers",),
        ("process_layout",),
        ("serve_config",),
        ("admin", "data_ports"),
        ("client", "http", "rpc"),
        ("front",),
        ("access", "telemetry"),
        ("front_options", "loading", "request_headers"),
        ("codecs",),
        ("sample", "shutdown_watchdog", "lifecycle"),
    ),
    "loadtest": (
        ("__main__",),
        ("live", "peers"),
        ("bench",),
        ("reports",),
        ("load",),
    ),
    "generators": (
        (
            "admin_page",
            "build_backend",
            "commands_page",
            "generate_messages",
            "options_page",
            "python_page",
            "sample",
            "training_page",
        ),
    ),
}
MOST_FLAT = 13
# Commands lead to every floor below the way in; benchmarks measure the engine in its own process; generators read what
# they write pages of.
WIDE = {
    "serving/commands/": {"serving", "models", "compiler", "processor"},
    "loadtest/bench/": set(FLOORS),
    "generators/": set(FLOORS),
}
# Peers must compute with the very same kernels and executables, or computing would be compared instead of serving.
SAME_KERNELS = {"loadtest/peers/same_kernels.py"}
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
    "processor/online_features/redis_store.py",
    "loadtest/bench/bench_features.py",
    "loadtest/bench/bench_sequences.py",
    "loadtest/bench/costly_requests.py",
    "loadtest/bench/sequence_peer.py",
    "processor/redis_client.py",
    "processor/tables/remote/redis.py",
    "loadtest/peers/fastapi_tf/",
    "loadtest/bench/foreign_models/builders/",
    "loadtest/bench/training/follow_race.py",
    "loadtest/bench/training/fuxictr_din_side.py",
    "loadtest/bench/training/fuxictr_side.py",
    "loadtest/bench/training/loops/",
    "loadtest/bench/training/rectools_side.py",
    "loadtest/bench/training/torch_din_side.py",
    "loadtest/bench/training/torch_side.py",
    "loadtest/bench/verdict/fbgemm_side.py",
)


def name_of(path):
    """The dotted name of a module; a package's is its folder's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name):
    """`floor.room` of a module; the floor alone for its own __init__."""
    return ".".join(name.split(".")[:2])


@cache
def import_statements(path):
    """The import statements of a file, wherever in it: (module, names, level), module None for `import`. All else of
    its tree is dropped: a thousand kept trees cost every later collection of garbage."""
    return tuple(
        (None, tuple(alias.name for alias in node.names), 0)
        if isinstance(node, ast.Import)
        else (node.module or "", tuple(alias.name for alias in node.names), node.level)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


@cache
def arrows():
    """Each module's name, and the names of the modules of the house that it imports, wherever in it."""
    names = {name_of(path): path for path in sources()}
    found = {}
    for name, path in names.items():
        used = set()
        for module, imported, level in import_statements(path):
            if module is None:
                used |= {own_name(one) for one in imported}
            else:
                assert level == 0, f"{name}: expected absolute imports"
                inner = [own_name(f"{module}.{one}") for one in imported]
                used |= {full if full in names else own_name(module) for full in inner}
        found[name] = {other for other in used if other in names} - {name}
    return found


def imports(path):
    for module, imported, level in import_statements(path):
        if module is None:
            yield from map(own_name, imported)
        elif module and level == 0:
            yield from (own_name(f"{module}.{one}") for one in imported)


def sources():
    return sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


ROOMS = sorted({room_of(name_of(path)) for path in sources()} - set(FLOORS))


@pytest.mark.parametrize("floor", FLOORS)
def test_modules_import_only_from_their_own_layer_or_below(floor):
    """One test a floor: a thousand, one a module, cost more than they do."""
    refused = {}
    for path in sorted((ROOT / floor).rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        allowed = next(
            (wide for folder, wide in WIDE.items() if relative.startswith(folder)), MAY_IMPORT.get(floor, set())
        )
        if relative in SAME_KERNELS:
            allowed = allowed | {"processor"}
        used = {name.split(".")[0] for name in imports(path)}
        upwards = (used & set(FLOORS)) - allowed
        heavy = set() if relative.startswith(HEAVY_HOMES) else used & HEAVY
        if upwards or heavy:
            refused[relative] = upwards | heavy
    assert refused == {}


@pytest.mark.parametrize("floor", FLOORS)
def test_every_package_has_a_level_and_few_modules_are_flat(floor):
    rooms = [room.removeprefix(f"{floor}.") for room in ROOMS if room.startswith(f"{floor}.")]
    assert sorted(room for level in LEVELS[floor] for room in level) == rooms
    flat = {path.stem for path in (ROOT / floor).glob("*.py")} - {"__init__", "__main__"}
    assert len(flat) <= MOST_FLAT


@pytest.mark.parametrize("room", ROOMS)
def test_package_imports_only_lower_levels_of_its_layer(room):
    """So there is no circle between rooms either."""
    floor = room.split(".")[0]
    height = {f"{floor}.{name}": -n for n, level in enumerate(LEVELS[floor]) for name in level}
    others = {(name, other) for name in arrows() if room_of(name) == room for other in arrows()[name]}
    beside = {(name, other) for name, other in others if other.startswith(f"{floor}.") and room_of(other) != room}
    assert not {(name, other) for name, other in beside if height[room_of(other)] >= height[room]}


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_package_have_no_import_cycle(room):
    inside = {name for name in arrows() if room_of(name) == room}
    graphlib.TopologicalSorter({name: arrows()[name] & inside for name in inside}).prepare()


@pytest.mark.parametrize("folder", [*FLOORS, "tests"])
def test_top_folders_are_imported_as_parts_of_freshet_serving(folder):
    """A second import under the bare name would be another copy of every class."""
    bare = re.compile(rf"^ *(?:from +|import +(?:.*\b)?)(?:{'|'.join(LINKED)})\b", re.MULTILINE)
    found = set()
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not bare.search(path.read_text()):
            # Not worth a tree: no line looks like such an import, in whatever it stands.
            continue
        for module, imported, level in import_statements(path):
            names = imported if module is None else [module] if level == 0 else []
            found |= {(path.relative_to(ROOT).as_posix(), n) for n in names if n.partition(".")[0] in LINKED}
    assert found == set()


def test_package_format_needs_only_numpy():
    code = (
        "import sys, freshet_serving.processor.repository.version, freshet_serving.processor.package.delta\n"
        "heavy = {'numba', 'tensorflow', 'onnxruntime', 'xxhash', 'fastapi'}\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
