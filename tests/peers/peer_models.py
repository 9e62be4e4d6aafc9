"""TensorFlow Serving's test models, rebuilt with a free first dimension, in folders named as its own are.

Its half_plus_two answers rows of rank 1 where its signature says [-1, 1]; here the signature says so too. Imported by
this process, so that a server finds packages. Where FRESHET_TFS_TESTDATA names a checkout of its folder
tensorflow_serving/servables/tensorflow/testdata, its own models can be served as they are stored there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
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
TESTDATA = os.environ.get("FRESHET_TFS_TESTDATA", "")
# Models of TensorFlow Serving's own server test, by the names that it serves them under.
STORED = {"default": "saved_model_half_plus_two_cpu", "half_plus_three": "saved_model_half_plus_three"}


def _spec(name: str, dtype: Any, *dims: int) -> Any:
    return tf.TensorSpec([None, *dims], dtype, name=name)


def _models() -> dict[str, tuple[list[Any], Callable[..., dict[str, Any]]]]:
    """Model -> its inputs, and what it makes of them."""
    named = [
        _spec("int_tensor", tf.int32, 2), _spec("str_tensor", tf.string, 2),
        _spec("float_tensor", tf.float32, 2), _spec("dbl_tensor", tf.float64),
    ]  # fmt: skip
    return {
        "half_plus_three": ([_spec("x", tf.float32)], lambda x: {"y": 0.5 * x + 3.0}),
        "ints": ([_spec("x", tf.int32, 2)], lambda x: {"y": tf.identity(x)}),
        "flat_ints": ([_spec("x", tf.int32)], lambda x: {"y": tf.identity(x)}),
        "doubles": ([_spec("x", tf.float64)], lambda x: {"y": tf.identity(x)}),
        "floats": ([_spec("x", tf.float32, 3)], lambda x: {"y": x * 1.0}),
        "strings": ([_spec("x", tf.string)], lambda x: {"y": tf.strings.length(x)}),
        "named_lengths": ([_spec("x", tf.string)], _length_and_name),
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


def _length_and_name(x: Any) -> dict[str, Any]:
    length = tf.strings.length(x)
    names = tf.constant(["short", "long"])
    return {"length": length, "name": tf.gather(names, tf.cast(length > 4, tf.int32))}


def save_half_plus_two(folder: Path) -> None:
    """Save TensorFlow Serving's half_plus_two as its own script does, with all of its signatures.

    Args:
        folder: To write the SavedModel to.
    """
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        a, b, c = (v1.Variable(value, name=name) for name, value in (("a", 0.5), ("b", 2.0), ("c", 3.0)))
        serialized = v1.placeholder(tf.string, name="tf_example")
        features = {
            "x": v1.FixedLenFeature([], tf.float32),
            "x2": v1.FixedLenFeature([], tf.float32, default_value=0.0),
        }
        parsed = v1.parse_example(serialized, features)
        x, x2 = (tf.identity(parsed[name], name=name) for name in ("x", "x2"))
        y, y2, y3 = (tf.add(tf.multiply(a, given), offset) for given, offset in ((x, b), (x, c), (x2, c)))
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            [v1.saved_model.tag_constants.SERVING],
            signature_def_map={
                "serving_default": _signature({"x": x}, {"y": y}, "predict"),
                "regress_x_to_y": _signature({"inputs": serialized}, {"outputs": y}, "regress"),
                "regress_x_to_y2": _signature({"inputs": serialized}, {"outputs": y2}, "regress"),
                "regress_x2_to_y3": _signature({"inputs": x2}, {"outputs": y3}, "regress"),
                "classify_x_to_y": _signature({"inputs": serialized}, {"scores": y}, "classify"),
            },
        )
        builder.save()


def _signature(inputs: dict[str, Any], outputs: dict[str, Any], method: str) -> Any:
    v1 = tf.compat.v1.saved_model
    infos = [{name: v1.build_tensor_info(t) for name, t in side.items()} for side in (inputs, outputs)]
    return v1.build_signature_def(*infos, f"tensorflow/serving/{method}")


def write_peer_models(repository: Path, stored: Path | None = None) -> None:
    """Write all models into a repository, as packages beside what they were imported from.

    Args:
        repository: To write to.
        stored: TensorFlow Serving's own testdata, to serve its models as they are; None for rebuilt ones.
    """
    with without_deprecations():
        save_half_plus_two(repository / "default" / FOLDER)
        for name, (inputs, serve) in _models().items():
            module = tf.Module()
            module.serve = tf.function(serve, input_signature=inputs, autograph=False)
            folder = repository / name / FOLDER
            tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    if stored is not None:
        for name, model in STORED.items():
            shutil.rmtree(repository / name)
            shutil.copytree(stored / model / FOLDER, repository / name / FOLDER)
    for name in ("default", *_models()):
        folder = repository / name / FOLDER
        imported = import_model(folder, repository, name, VERSION, ImportOptions(buckets=(1, 16)))
        assert imported.folder.name == FOLDER


@contextlib.contextmanager
def serve_peer_models(folder: Path, stored: Path | None = None) -> Iterator[LiveServer]:
    """Serve all models, with a channel to the server and the label "stable".

    Args:
        folder: For the repository and the log.
        stored: TensorFlow Serving's own testdata, to serve its models as they are; None for rebuilt ones.

    Yields:
        The server, ready.
    """
    write_peer_models(folder / "repository", stored)
    options = (*ALONE, "--shared-memory", "on")
    with LiveServer(folder / "repository", *options, log=folder / "serve.log") as server:
        assert server.post_json("/admin/models/default/labels/stable", {"version": VERSION}, "PUT")[0] == 200
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as server.channel:
            yield server
