"""Import TensorFlow and Keras once and quietly: import them from here and from nowhere else.

At its end TensorFlow imports all of Keras for the optimizers of SavedModels, a fifth of the import. Nothing here needs
them, so Keras is imported at the first use of `keras`, and without matplotlib, in which it would draw pictures.

TensorFlow's C++ code logs a few lines to file descriptor 2 before any setting can take effect. They are captured during
the import and dropped; everything else written meanwhile is passed on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.extras import needed

CHATTER = (
    b"before absl::InitializeLog()",
    b"oneDNN custom operations",
    b"cpu_feature_guard",
    b"To enable the following",
)


@contextmanager
def _without_chatter() -> Iterator[None]:
    try:
        stderr = os.dup(2)
    except OSError:  # a process without one
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not any(words in line for words in CHATTER):
                    os.write(2, line)


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Keep others from importing a module that they can do without; no effect once it is imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


if TYPE_CHECKING:
    import keras

USE = "training, importing or compiling"
EAGER, PLOTS = "keras.src.optimizers", "matplotlib"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
with needed(USE):
    with _without_chatter(), _without(EAGER):
        import tensorflow as tf
    from tensorflow.core.framework import summary_pb2
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
    from tensorflow.python.framework import op_def_registry
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

__all__ = [
    "inlined",
    "keras",
    "meta_graph_pb2",
    "op_def_registry",
    "quiet",
    "saved_model_pb2",
    "summary_pb2",
    "tf",
]


def __getattr__(name: str) -> Any:
    if name != "keras":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed(USE), _without_chatter(), _without(PLOTS):
        import keras
    globals()[name] = keras
    return keras


def inlined(concrete: Any) -> Any:
    """Return a concrete function with all calls inlined; branches and loops stay. Captured state becomes constant."""
    return convert_variables_to_constants_v2(concrete, lower_control_flow=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress TensorFlow's deprecation warnings while the block runs."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
