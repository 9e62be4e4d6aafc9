"""Keep what XLA compiles and what the converter to ONNX writes in build/, named by a digest of what it follows from.

Both workers of a run share it, and the next run. The user's own store is left alone: it keeps 128 executables, fewer
than tests compile, so that each would be removed before it is needed again.
"""

import hashlib
import json
import os
import shutil
import sys
from functools import cache, wraps
from pathlib import Path

from freshet_serving.processor.kernels.code_store import write_whole

ROOT = Path(__file__).resolve().parents[2]
FOLDER, MOST_FILES = ROOT / "build" / "tests", 1024
STORE = "freshet_serving.compiler.backends.executable_store"
_cache_of_user = os.environ.get("XDG_CACHE_HOME")


def share_executables():
    """Let XLA's executables be kept there from now on; does nothing before the first test that imports the store."""
    store = sys.modules.get(STORE)
    if store is None or hasattr(store, "folder_of_user"):
        return
    store.folder_of_user = store._folder

    def folder():
        chosen = os.environ.get("XDG_CACHE_HOME") != _cache_of_user
        return store.folder_of_user() if chosen else FOLDER / "executables"

    store._folder, store.MOST_FILES = folder, MOST_FILES


def stored_conversion(to_onnx):
    """Return to_onnx, which reads what an equal graph was converted to, in this run or before."""

    @wraps(to_onnx)
    def stored(graph):
        path = FOLDER / f"onnx-{_code()}" / _digest(graph)
        try:
            weights, _, model = path.read_bytes().partition(b"\n")
            return model, json.loads(weights)
        except OSError:
            model, weights = to_onnx(graph)
        if not path.parent.exists():
            for folder_of_other_code in FOLDER.glob("onnx-*"):
                shutil.rmtree(folder_of_other_code, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(weights).encode() + b"\n" + model)
        return model, weights

    return stored


def _digest(graph):
    from freshet_serving.compiler.passes.graph import Graph

    ends = graph.spec, [*graph.weights], [weight.shape for weight in graph.weights.values()]
    return hashlib.sha256(repr(ends).encode() + b"\0" + Graph.of_dense(graph).to_bytes()).hexdigest()[:40]


@cache
def _code():
    """Return a digest of the code that converts."""
    import onnx
    import tensorflow as tf
    import tf2onnx

    digest = hashlib.sha256(" ".join((tf.__version__, tf2onnx.__version__, onnx.__version__)).encode())
    for file in sorted((ROOT / "compiler").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
