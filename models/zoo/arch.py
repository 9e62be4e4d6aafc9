"""Resolve and build an architecture: a network over the dense input, by name or from the user's own module."""

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
from freshet_serving.processor.package.item_rows import ItemRows

if TYPE_CHECKING:
    from freshet_serving.compiler.frameworks import keras

Builder = Callable[..., Any]
"""(layout: DenseInput, seed: int, **options) -> Arch, or keras.Model of logits. `labels` receives the labels' names."""
SCORE = "score"
"""Name of the output with the probability of a single label."""
USER_VECTOR = "user_vector"
"""Name of the output whose product with an item's vector or row ranks the item."""
ITEM_VECTOR = "item_vector"
"""Name of the output of two towers that is an item's vector."""
MIXTURE = "mixture"
"""Name of the output with a next-item network's weights of popularity and counts (processor.package.item_rows)."""

_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class NextItem:
    """A network that learns which item comes next (models.training.next_item_functions).

    Attributes:
        states: A history [n, width] -> after each of its events the user's vector, as far as an item's row has learned
            numbers and a popularity, and the mixture: [n, length, rows.dense + 3], or + 0 without successors.
        negatives: Most items that a target is compared with in a step.
    """

    states: keras.Model
    negatives: int
    rows: ItemRows


@dataclass(frozen=True, slots=True)
class Towers:
    """A network of two towers that learns to retrieve (models.training.retrieval_functions).

    Attributes:
        vectors: x [n, width] -> `user_vector` and `item_vector`, [n, d] each.
        negatives: Items that every user of a step is compared with beside those of the batch.
        temperature: What products are divided by; 0 if it is learned.
    """

    vectors: keras.Model
    negatives: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Arch:
    """Two models over the same weights.

        >>> x = keras.Input((3,))
        >>> arch = Arch.of(keras.Model(x, keras.layers.Dense(1)(x)), labels=("clicked",))
        >>> arch.outputs, arch.scores(np.zeros((2, 3), np.float32))["score"].shape
        (('score',), TensorShape([2, 1]))

    Attributes:
        logits: x [n, width] -> [n, labels], for the loss. Further inputs, after x, are filled by the filler of their
            name (processor.running.fillers).
        scores: The same inputs -> named outputs, each [n, columns], for evaluation and serving.
        outputs: The outputs that are the labels' probabilities, in the order of the labels.
        begin: Replaces set_initial_bias for a network whose logits are not sums with a bias of their own.
        next_item: For a network that learns which item comes next, in place of labels; its output `score` is the
            product of the user's vector and the item's row, and a rest for the successors of the newest events.
        towers: For a network of two towers, whose output `score` rises with the product of its vectors.
    """

    logits: keras.Model
    scores: keras.Model
    outputs: tuple[str, ...] = (SCORE,)
    begin: Callable[[Sequence[float]], None] | None = None
    next_item: NextItem | None = None
    towers: Towers | None = None

    @classmethod
    def of(cls, built: Any, labels: Sequence[str] = ("label",)) -> Arch:
        """Convert what a builder returned.

        A plain model gets one output per label, the sigmoid of its logit, named 'score' for a single label, else after
        the labels.

        Args:
            built: The builder's result.
            labels: Names of the labels.

        Raises:
            BadInput: It is not such a network.
        """
        from freshet_serving.compiler.frameworks import keras

        columns = len(labels)
        if isinstance(built, Arch):
            got = (built.logits.output_shape[-1], len(built.outputs))
            if got != (columns, columns):
                raise BadInput(f"arch: expected {_logits(labels)} and as many outputs, got {got[0]} and {got[1]}")
            return built
        if not isinstance(built, keras.Model):
            raise BadInput(f"arch: expected the builder to return a keras.Model, got {type(built).__name__}")
        ends: list[Sequence[int | None]] = [getattr(t, "shape", ()) for t in (*built.inputs[:1], *built.outputs)]
        if len(ends) != 2 or any(len(shape) != 2 for shape in ends) or ends[1][1] != columns:
            raise BadInput(f"arch: expected a functional keras.Model from x [n, width] to {_logits(labels)}")
        names, logits = output_names(labels), built.outputs[0]
        scores = {
            name: keras.layers.Activation("sigmoid", name=name)(logits if columns == 1 else logits[:, k : k + 1])
            for k, name in enumerate(names)
        }
        return cls(
            built,
            keras.Model(
                built.inputs[0] if len(built.inputs) == 1 else built.inputs, scores, name=f"{built.name}_scores"
            ),
            names,
        )

    def set_initial_bias(self, log_odds: Sequence[float]) -> None:
        """Raise every label's initial logit by its log-odds, if a bias of the network does exactly that.

        Does nothing otherwise.

        A network whose labels are rarely 1 would spend its first thousand steps on learning that, embeddings and all.
        """
        if self.begin is not None and log_odds:
            self.begin(log_odds)
            return
        random = np.random.default_rng(0)
        inputs = [random.standard_normal((8, *i.shape[1:])).astype(np.float32) for i in self.logits.inputs]
        x = inputs[0] if len(inputs) == 1 else inputs
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
    """Return the names of outputs that are the labels' probabilities. Raises BadInput for labels that are no names."""
    if len(labels) == 1:
        return (SCORE,)
    for label in labels:
        if NAME.fullmatch(label) is None or label == "x":
            raise BadInput(
                f"data.label: expected a name of letters, digits, '_', '.', '-' other than 'x', got {label[:80]!r}"
            )
    return tuple(labels)


def build_arch(
    name: str, layout: DenseInput, options: Mapping[str, Any], labels: Sequence[str] = ("label",), seed: int = 0
) -> Arch:
    """Build a network, named as for resolve_arch, of validated options. Raises BadInput."""
    builder = resolve_arch(name)
    arguments = {"seed": seed, **({"labels": tuple(labels)} if takes_labels(builder) else {}), **options}
    try:
        inspect.signature(builder).bind(layout, **arguments)
    except TypeError as error:
        raise BadInput(f"arch: {name[:80]!r} must take a layout, seed and its options: {error}") from None
    return Arch.of(builder(layout, **arguments), labels)


def takes_labels(builder: Builder) -> bool:
    return "labels" in inspect.signature(builder).parameters


def _logits(labels: Sequence[str]) -> str:
    return "one logit [n, 1]" if len(labels) == 1 else f"logits [n, {len(labels)}] of {', '.join(labels)[:80]}"


def resolve_arch(name: str) -> Builder:
    """Return the builder of a name: one of the zoo, or "package.module:function"; raise BadInput for any other."""
    if name not in ARCHITECTURES and not _REFERENCE.fullmatch(name):
        raise BadInput(f"arch: expected {', '.join(ARCHITECTURES)} or 'package.module:function', got {name[:80]!r}")
    return resolve_function(ARCHITECTURES.get(name, name), "arch")


def resolve_function(name: str, where: str) -> Callable[..., Any]:
    """Resolve "package.module:function"; raise BadInput, in the name of the option `where`, if there is none.

    A reference imports the user's module: only ever resolve names from the user's own configuration.
    """
    match = _REFERENCE.fullmatch(name)
    if match is None:
        raise BadInput(f"{where}: expected 'package.module:function', got {name[:80]!r}")
    try:
        module = importlib.import_module(match[1])
    except ImportError as error:
        raise BadInput(f"{where}: module {match[1]!r} of {name[:80]!r} cannot be imported: {error}") from error
    function: Callable[..., Any] | None = getattr(module, match[2], None)
    if not callable(function):
        raise BadInput(f"{where}: {name[:80]!r} is not a function of that module")
    return function
