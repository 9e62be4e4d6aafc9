"""An architecture: a network over the dense input, by name or from the user's own module."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.frameworks import keras
from models.zoo.architectures import ARCHITECTURES
from processor.errors import BadInput

Builder = Callable[..., Any]
"""(layout: Layout, hidden=..., seed=..., **options) -> Arch, or a keras.Model of logits."""

OURS = {"processor", "compiler", "models", "serving"}
"""Top-level names under which a user's own module is not found: Freshet has imported its own."""

_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Arch:
    """Two models over the same weights. logits: x [n, width] -> [n, 1], for the loss.
    scores: x -> {"score": sigmoid of the logit [n, 1]}, for evaluation and serving."""

    logits: keras.Model
    scores: keras.Model

    @classmethod
    def of(cls, built: Any) -> Arch:
        """The Arch of what a builder returned; raises BadInput when it is no network of one logit a row."""
        if isinstance(built, Arch):
            return built
        if not isinstance(built, keras.Model):
            raise BadInput(f"arch: the builder is to return a keras.Model, got {type(built).__name__}")
        ends: list[Sequence[int | None]] = [getattr(tensor, "shape", ()) for tensor in (*built.inputs, *built.outputs)]
        if len(ends) != 2 or any(len(shape) != 2 for shape in ends) or ends[1][1] != 1:
            raise BadInput("arch: a functional keras.Model from one input [n, width] to one logit [n, 1] wanted")
        score = keras.layers.Activation("sigmoid", name="score")(built.outputs[0])
        return cls(built, keras.Model(built.inputs[0], {"score": score}, name=f"{built.name}_scores"))

    def begin_at(self, log_odds: float) -> None:
        """Lets every logit begin so much higher, where the network has a bias that does just that; else does nothing.

        A network whose labels are rarely 1 would spend its first thousand steps on learning that, embeddings and all.
        """
        x = np.random.default_rng(0).standard_normal((8, self.logits.inputs[0].shape[1])).astype(np.float32)
        before = self.logits(x, training=False).numpy()
        for variable in self.logits.trainable_variables:
            if tuple(variable.shape) != (1,):
                continue
            began = variable.numpy()
            variable.assign(began + np.float32(log_odds))
            if np.allclose(self.logits(x, training=False).numpy() - before, log_odds, rtol=1e-3, atol=1e-4):
                return
            variable.assign(began)


def resolve_arch(name: str) -> Builder:
    """The builder called `name`: one of the zoo, or "package.module:function"; raises BadInput for any other.

    A reference imports the user's module: only ever resolve names from the user's own configuration.
    """
    match = _REFERENCE.fullmatch(ARCHITECTURES.get(name, name))
    if match is None:
        raise BadInput(f"arch: {', '.join(ARCHITECTURES)} or 'package.module:function' wanted, got {name[:80]!r}")
    try:
        module = importlib.import_module(match[1])
    except ImportError as error:
        why = f"{error}{_taken(error.name or '')}"
        raise BadInput(f"arch: module {match[1]!r} of {name[:80]!r} cannot be imported: {why}") from error
    builder: Callable[..., Any] | None = getattr(module, match[2], None)
    if not callable(builder):
        raise BadInput(f"arch: {name[:80]!r} is no function of that module{_taken(match[1])}")
    return builder


def _taken(module: str) -> str:
    """Why a module of the user's cannot be found by this name; empty where nothing of ours is in its way."""
    top = module.partition(".")[0]
    if top not in OURS or top not in sys.modules:
        return ""
    return f"; the name {top!r} is taken by Freshet's own package ({sys.modules[top].__file__}): rename yours"
