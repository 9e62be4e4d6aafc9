"""The floors of the house: a package imports only from its own floor or below."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("serving", "models", "compiler", "processor", "loadtest")
MAY_IMPORT = {
    "processor": {"processor"},
    "compiler": {"compiler", "processor"},
    "models": {"models", "compiler", "processor"},
    "serving": {"serving", "processor"},
    "loadtest": {"loadtest"},
}
# Commands lead to every floor; benchmarks measure the engine in its own process.
EVERYWHERE = ("serving/commands/", "serving/__main__.py", "loadtest/bench/")
# Peers must compute with the very same kernels and executables, or computing would be compared instead of serving.
SAME_KERNELS = {"loadtest/peers/same_kernels.py"}
HEAVY = {"tensorflow", "keras", "jax", "openvino", "onnxruntime", "tensorrt", "onnx", "tf2onnx", "redis"}
HEAVY_HOMES = (
    "processor/backends/",
    "compiler/backends/",
    "compiler/frameworks.py",
    "processor/tables/remote/redis.py",
    "loadtest/peers/fastapi_tf/",
)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def sources():
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_its_own_floor_or_below(path):
    relative = path.relative_to(ROOT).as_posix()
    room = relative.split("/")[0]
    allowed = set(ROOMS) if relative.startswith(EVERYWHERE) else MAY_IMPORT[room]
    if relative in SAME_KERNELS:
        allowed = allowed | {"processor"}
    used = {name.split(".")[0] for name in imports(path)}
    assert not (used & set(ROOMS)) - allowed
    if not relative.startswith(HEAVY_HOMES):
        assert not used & HEAVY


def test_the_package_format_needs_numpy_and_nothing_heavier():
    code = (
        "import sys, processor.package.version, processor.package.delta\n"
        "heavy = {'numba', 'tensorflow', 'onnxruntime', 'xxhash', 'fastapi'}\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
