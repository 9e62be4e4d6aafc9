"""TensorFlow Serving's test models, rebuilt with a free first dimension, in folders named as its own are.

Its half_plus_two has shape [1] or [] in places; a model here has rows. Imported by this process, so that a server finds
packages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from tests.compiler.imports.foreign import without_deprecations
from tests.e2e.servers import ALONE, LiveServer

VERSION = 123
FOLDER = "00000123"


def _spec(name: str, dtype: Any, *dims: int) -> Any:
    return tf.TensorSpec([None, *dims], dtype, name=name)


def _models() -> dict[str, tuple[list[Any], Callable[..., dict[str, Any]]]]:
    """Model -> its inputs, and what it makes of them."""
    named = [
        _spec("int_tensor", tf.int32, 2), _spec("str_tensor", tf.string, 2),
        _spec("float_tensor", tf.float32, 2), _spec("dbl_tensor", tf.float64),
    ]  # fmt: skip
    return {
        "default": ([_spec("x", tf.float32)], lambda x: {"y": 0.5 * x + 2.0}),
        "half_plus_three": ([_spec("x", tf.float32)], lambda x: {"y": 0.5 * x + 3.0}),
        "ints": ([_spec("x", tf.int32, 2)], lambda x: {"y": tf.identity(x)}),
        "flat_ints": ([_spec("x", tf.int32)], lambda x: {"y": tf.identity(x)}),
        "doubles": ([_spec("x", tf.float64)], lambda x: {"y": tf.identity(x)}),
        "floats": ([_spec("x", tf.float32, 3)], lambda x: {"y": x * 1.0}),
        "strings": ([_spec("x", tf.string)], lambda x: {"y": tf.strings.length(x)}),
        "flags": ([_spec("x", tf.bool)], lambda x: {"y": tf.logical_not(x)}),
        "nested": ([_spec("x", tf.float32, 3, 2)], lambda x: {"y": x * 1.0}),
        "named": (
            named,
            lambda int_tensor, str_tensor, float_tensor, dbl_tensor: {
                "ints": tf.identity(int_tensor),
                "lengths": tf.strings.length(str_tensor),
                "floats": float_tensor * 1.0,
                "doubles": tf.identity(dbl_tensor),
            },
        ),
    }


def write_peer_models(repository: Path) -> None:
    """Write all models into a repository, as packages beside what they were imported from."""
    for name, (inputs, serve) in _models().items():
        module = tf.Module()
        module.serve = tf.function(serve, input_signature=inputs, autograph=False)
        folder = repository / name / FOLDER
        with without_deprecations():
            tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
        imported = import_model(folder, repository, name, VERSION, ImportOptions(buckets=(1, 16)))
        assert imported.folder.name == FOLDER


@contextlib.contextmanager
def serve_peer_models(folder: Path) -> Iterator[LiveServer]:
    """Serve all models, with a channel to the server and the label "stable".

    Args:
        folder: For the repository and the log.

    Yields:
        The server, ready.
    """
    write_peer_models(folder / "repository")
    options = (*ALONE, "--shared-memory", "on")
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        assert server.post_json("/admin/models/default/labels/stable", {"version": VERSION}, "PUT")[0] == 200
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as server.channel:
            yield server
