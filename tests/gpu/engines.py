"""TensorRT's other ways to new dense weights, which are not served: engines that hold them, and refits of such.

What is served has weights as inputs (processor.backends.tensorrt). These are built and timed beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from freshet_serving.processor.backends.tensorrt import WEIGHT_PREFIX, EngineBuilder, TensorRt
from freshet_serving.processor.errors import BadInput

INPUTS, INSIDE, REFITTED = "weights as inputs", "weights inside", "weights inside, to be refitted"
"""The ways. What builds an engine of each: ways()."""


class Refittable(EngineBuilder):
    """Builds engines whose weights can be refitted."""

    def config(self, builder: Any, target: str) -> Any:
        config = super().config(builder, target)
        config.set_flag(self.module.BuilderFlag.REFIT)
        return config


def available() -> bool:
    """Whether a library is installed that builds engines for GPUs that are elsewhere."""
    try:
        return bool(EngineBuilder().targets())
    except BadInput:
        return False


def refit(backend: TensorRt, engine: bytes, weights: Mapping[str, np.ndarray]) -> Any:
    """A copy of the engine with these weights; raises BadInput for one that it holds and does not offer."""
    copy = backend.module.Runtime(backend.logger).deserialize_cuda_engine(engine)
    refitter = backend.module.Refitter(copy, backend.logger)
    offered = set(refitter.get_all_weights())
    for name, array in weights.items():
        if WEIGHT_PREFIX + name not in offered:
            raise BadInput(f"dense weight {name!r}: the engine does not offer it for a refit")
        refitter.set_named_weights(WEIGHT_PREFIX + name, backend.module.Weights(array.reshape(-1)))
    if not refitter.refit_cuda_engine():
        raise BadInput("the library refused the weights")
    return copy
