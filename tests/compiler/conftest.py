"""Tests of the compiler need TensorFlow, those listed excepted: they are marked so, and not collected without it."""

from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHOUT = (
    "test_progress.py",
    "backends/test_gpu_targets.py",
    "building/test_auc.py",
    "building/test_bucket_list.py",
    "building/test_finite_check.py",
    "building/test_unlabelled_review.py",
    "dense/test_expression.py",
    "dense/test_onnx_dense_graph.py",
    "imports/onnx_native/*",
)


def needs_tensorflow(path):
    within = path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else "test_progress.py"
    return path.name.startswith("test_") and not any(fnmatch(within, pattern) for pattern in WITHOUT)


def pytest_ignore_collect(collection_path):
    return True if find_spec("tensorflow") is None and needs_tensorflow(collection_path) else None


def pytest_collection_modifyitems(items):
    for item in items:
        if needs_tensorflow(item.path):
            item.add_marker(pytest.mark.tensorflow)
