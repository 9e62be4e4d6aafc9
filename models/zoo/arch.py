"""An architecture: a network over the dense input, by name or from the user's own module."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from freshet_serving.models.zoo.architectures import ARCHITECTURES
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import NAME

if TYPE_CHECKING:
    from freshet_serving.compiler.frameworks import keras

Builder = Callable[..., Any]
"""(layout: DenseInput, seed: int, **options) -> Arch, or a keras.Model of logits. Where it has a parameter `labels`, it
is given the labels' names."""
SCORE = "score"
"""What the probability of a single label is called."""

_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Arch:
    """Two models over the same weights. logits: x [n, width] -> [n, labels], for the loss. scores: x -> named outputs,
    each [n, columns], for evaluation and serving. outputs: which of them are the labels' probabilities, in their order.

    begin: what set_initial_bias does, of a network whose logits are no sums with a bias of their own.
    """

    logits: keras.Model
    scores: keras.Model
    outputs: tuple[str, ...] = (SCORE,)
    begin: Callable[[Sequence[float]], None] | None = None

    @classmethod
    def of(cls, built: Any, labels: Sequence[str] = ("label",)) -> Arch:
        """The Arch of what a builder returned: of a plain model with an output a label, sigmoid of its logit, called
        'score' where there is one label, else as the labels are. Raises BadInput when it is no such network."""
        from freshet_serving.compiler.frameworks import keras

        columns = len(labels)
        if isinstance(built, Arch):
            got = (built.logits.output_shape[-1], len(built.outputs))
            if got != (columns, columns):
                raise BadInput(f"arch: {_logits(labels)} and as many outputs wanted, got {got[0]} and {got[1]}")
            return built
        if not isinstance(built, keras.Model):
            raise BadInput(f"arch: the builder is to return a keras.Model, got {type(built).__name__}")
        ends: list[Sequence[int | None]] = [getattr(tensor, "shape", ()) for tensor in (*built.inputs, *built.outputs)]
        if len(ends) != 2 or any(len(shape) != 2 for shape in ends) or ends[1][1] != columns:
            raise BadInput(f"arch: a functional keras.Model from one input [n, width] to {_logits(labels)} wanted")
        names, logits = output_names(labels), built.outputs[0]
        scores = {
            name: keras.layers.Activation("sigmoid", name=name)(logits if columns == 1 else logits[:, k : k + 1])
            for k, name in enumerate(names)
        }
        return cls(built, keras.Model(built.inputs[0], scores, name=f"{built.name}_scores"), names)

    def set_initial_bias(self, log_odds: Sequence[float]) -> None:
        """Lets every label's logit begin so much higher, where the network has a bias that does just that; else does
        nothing.

        A network whose labels are rarely 1 would spend its first thousand steps on learning that, embeddings and all.
        """
        if self.begin is not None and log_odds:
            self.begin(log_odds)
            return
        x = np.random.default_rng(0).standard_normal((8, self.logits.inputs[0].shape[1])).astype(np.float32)
        biases = [v for v in self.logits.trainable_variables if tuple(v.shape) == (1,)]
        for shift in np.diag(np.asarray(log_odds, np.float32)):
            before = self.logits(x, training=False).numpy()
            for variable in biases:
                began = variable.numpy()
                variable.assign(began + shift.sum())
                if np.allclose(self.logits(x, training=False).numpy() - before, shift, rtol=1e-3, atol=1e-4):
                    break
                variable.assign(began)


def output_names(labels: Sequence[str]) -> tuple[str, ...]:
    """What outputs are called that are a probability a label; raises BadInput for labels that none can be called by."""
    if len(labels) == 1:
        return (SCORE,)
    for label in labels:
        if NAME.fullmatch(label) is None or label == "x":
            raise BadInput(
                f"data.label: a name of letters, digits, '_', '.', '-' other than 'x' wanted, got {label[:80]!r}"
            )
    return tuple(labels)


def build_arch(
    name: str, layout: DenseInput, options: Mapping[str, Any], labels: Sequence[str] = ("label",), seed: int = 0
) -> Arch:
    """Builds the network called `name` (see resolve_arch); options: of its builder, checked. Raises BadInput."""
    builder = resolve_arch(name)
    given = {"seed": seed, **({"labels": tuple(labels)} if takes_labels(builder) else {}), **options}
    try:
        inspect.signature(builder).bind(layout, **given)
    except TypeError as error:
        raise BadInput(f"arch: {name[:80]!r} is to take a layout, seed and its options: {error}") from None
    return Arch.of(builder(layout, **given), labels)


def takes_labels(builder: Builder) -> bool:
    """Whether a builder is told the labels, and may so make a network of several."""
    return "labels" in inspect.signature(builder).parameters


def _logits(labels: Sequence[str]) -> str:
    return "one logit [n, 1]" if len(labels) == 1 else f"logits [n, {len(labels)}] of {', '.join(labels)[:80]}"


def resolve_arch(name: str) -> Builder:
    """The builder called `name`: one of the zoo, or "package.module:function"; raises BadInput for any other."""
    if name not in ARCHITECTURES and not _REFERENCE.fullmatch(name):
        raise BadInput(f"arch: {', '.join(ARCHITECTURES)} or 'package.module:function' wanted, got {name[:80]!r}")
    return resolve_function(ARCHITECTURES.get(name, name), "arch")


def resolve_function(name: str, where: str) -> Callable[..., Any]:
    """The function "package.module:function", of the option `where`; raises BadInput where there is none.

    A reference imports the user's module: only ever resolve names from the user's own configuration.
    """
    match = _REFERENCE.fullmatch(name)
    if match is None:
        raise BadInput(f"{where}: 'package.module:function' wanted, got {name[:80]!r}")
    try:
        module = importlib.import_module(match[1])
    except ImportError as error:
        raise BadInput(f"{where}: module {match[1]!r} of {name[:80]!r} cannot be imported: {error}") from error
    function: Callable[..., Any] | None = getattr(module, match[2], None)
    if not callable(function):
        raise BadInput(f"{where}: {name[:80]!r} is no function of that module")
    return function
