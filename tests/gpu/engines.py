"""Engines of TensorRT-RTX, built for a GPU that is not here: what its compiler says of a graph. They are not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

WEIGHT_PREFIX = "weights/"


def available() -> bool:
    """Whether TensorRT-RTX is installed."""
    try:
        _library()
    except ImportError:
        return False
    return True


def build_engine(model: bytes, weights: Mapping[str, np.ndarray], bucket: int, target: str) -> int:
    """Builds an engine of an ONNX graph whose weights are outside; returns its bytes.

    target: a compute capability such as SM80. Raises RuntimeError with what the library said."""
    rtx, said = _library(), []

    class Logger(rtx.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            rtx.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (rtx.ILogger.Severity.ERROR, rtx.ILogger.Severity.INTERNAL_ERROR):
                said.append(message)

    logger = Logger()
    builder = rtx.Builder(logger)
    network = builder.create_network(0)
    parser = rtx.OnnxParser(network, logger)
    parser.load_model_proto(model, "")
    held = {name: np.ascontiguousarray(array, np.float32) for name, array in weights.items()}
    for name, array in held.items():
        parser.load_initializer(WEIGHT_PREFIX + name, array.ctypes.data, array.nbytes)
    if not parser.parse_model_proto():
        raise RuntimeError(_first(said, "the graph cannot be parsed"))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for number in range(network.num_inputs):
        end = network.get_input(number)
        if -1 in (shape := list(end.shape)):
            fixed = [bucket if n == -1 else n for n in shape]
            profile.set_shape(end.name, fixed, fixed, fixed)
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(rtx.ComputeCapability, target), 0)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError(_first(said, "no engine was built"))
    return int(engine.nbytes)


def _first(said: list[str], otherwise: str) -> str:
    return said[0].splitlines()[0][:200] if said else otherwise


def _library() -> Any:
    import tensorrt_rtx_bindings as rtx
    import tensorrt_rtx_libs  # noqa: F401

    return rtx
