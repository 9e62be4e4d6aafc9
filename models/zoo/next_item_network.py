"""The score of a network that learns which item comes next: learned numbers, popularity, and counts of what followed.

processor.package.item_rows has the formula. Everything that depends on the history alone is computed once a request; a
candidate costs a product and a comparison of its key with those of the successors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from freshet_serving.models.zoo.arch import MIXTURE, SCORE, USER_VECTOR, Arch, NextItem
from freshet_serving.models.zoo.dense_input import DenseInput
from freshet_serving.models.zoo.histories import (
    History,
    each_event,
    history,
    newest_event,
    shared_tables,
    with_positions,
)
from freshet_serving.models.zoo.layers import LayerFactory, Tensor
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.item_rows import KEY_PARTS, LOG_FLOOR, SCALE, SMOOTHING, ItemRows

FASTER = 10.0
"""The mixture's weights move this many times as fast as the network's."""
MIXTURE_WEIGHTS = "mixture/weights"
"""Path of the mixture's weights: w - 1, a1 and a2, each divided by FASTER."""


def next_item(
    layout: DenseInput,
    name: str,
    states: Callable[[LayerFactory, History, Tensor], Tensor],
    dropout: float,
    negatives: int,
    popularity: bool,
    successors: int,
    seed: int,
) -> Arch:
    """Return the network that learns which item comes next in a history.

    An item has one row, as an event and as a candidate: what is learned from its events holds for the candidate.
    `states` returns the network's numbers after each event [n, length, d], from the events with their places. Raises
    BadInput unless there are one sequence, and one item feature whose table a column of it reads.
    """
    from freshet_serving.compiler.frameworks import keras

    ops, layer_factory = keras.ops, LayerFactory(seed, dropout)
    if len(layout.sequences) != 1:
        raise BadInput(f"sequences: expected one section [sequences.<name>] for {name}, got {len(layout.sequences)}")
    h = history(keras.Input((layout.width,), name="x"), layout, layout.sequences[0])
    x, width = h.x, h.target.shape[1]
    if width != layout.width or h.matched.shape[2] != width:
        shared = shared_tables(layout, layout.sequences[0])
        raise BadInput(f"features: expected exactly one of side item for {name}, which reads {shared}")
    rows = ItemRows(width, popularity, successors if popularity else 0)
    events = h.matched[:, :, : rows.dim] * rows.dim**0.5
    if h.events.shape[2] > width:
        others = each_event(layer_factory, h.events[:, :, width:], rows.dim, f"{h.name}_event", bias=False)
        events = events + others
    events = layer_factory.dropped(with_positions(events, seed, f"{h.name}_position"), f"{h.name}_position")
    after = states(layer_factory, h, events)
    inputs, user = [x, h.input], newest_event(h, after)
    if not popularity:
        score = ops.sum(user * h.target, axis=1, keepdims=True)
        scores = {SCORE: score, USER_VECTOR: user}
        return _arch(
            name, inputs, scores, NextItem(keras.Model(h.input, after, name=f"{name}_states"), negatives, rows)
        )
    mixture = _mixture_layer()(h.mask)
    kinds = 3 if rows.successors else 1
    after = ops.concatenate([after, ops.expand_dims(h.mask, 2) * ops.expand_dims(mixture[:, :kinds], 1)], axis=2)
    # The oldest place has an event if any has. Without events, popularity alone.
    has_events = h.mask[:, :1]
    weight = has_events * mixture[:, :1] + (1.0 - has_events) * SCALE
    score = ops.sum(user * h.target[:, : rows.dim], axis=1, keepdims=True) + weight * h.target[:, rows.dim : rows.dense]
    unread = ops.repeat(ops.zeros_like(has_events), width - rows.dense, axis=1)
    scores = {USER_VECTOR: ops.concatenate([user, weight, unread] if rows.successors else [user, weight], axis=1)}
    if rows.successors:
        score = score + _lift(h, rows, mixture)
        scores[MIXTURE] = mixture
    learner = NextItem(keras.Model(h.input, after, name=f"{name}_states"), negatives, rows)
    return _arch(name, inputs, {SCORE: score, **scores}, learner)


def _arch(name: str, inputs: list[Tensor], scores: dict[str, Tensor], learner: NextItem) -> Arch:
    from freshet_serving.compiler.frameworks import keras

    logits = keras.Model(inputs, scores[SCORE], name=name)
    whole = keras.Model(inputs, scores, name=f"{name}_scores")
    return Arch(logits, whole, begin=lambda log_odds: None, next_item=learner)


def _lift(h: History, rows: ItemRows, mixture: Tensor) -> Tensor:
    """Return what is added to the score of a candidate that has followed the newest events, [n, 1]."""
    from freshet_serving.compiler.frameworks import keras

    ops = keras.ops
    after = ops.concatenate([h.mask[:, 1:], ops.zeros_like(h.mask[:, :1])], axis=1)
    newest = h.mask * (1.0 - after)
    before = ops.concatenate([newest[:, 1:], ops.zeros_like(h.mask[:, :1])], axis=1)
    mixed = 0.0
    for number, places in enumerate((newest, before)):
        # A sum and no product of matrices, which some devices compute with fewer bits than a key has.
        row = ops.sum(ops.expand_dims(places, 2) * h.matched, axis=1)
        same = 1.0
        for part in range(KEY_PARTS):
            first = rows.keys.start + part * rows.successors
            own_key = h.target[:, rows.own.start + part : rows.own.start + part + 1]
            # 1 for equal whole numbers, 0 for others.
            same = same * ops.relu(1.0 - ops.abs(row[:, first : first + rows.successors] - own_key))
        times = ops.sum(same * row[:, rows.times(number)], axis=1, keepdims=True)
        total = row[:, rows.totals.start + number : rows.totals.start + number + 1]
        mixed = mixed + ops.exp(mixture[:, number + 1 : number + 2]) * times / (total + SMOOTHING)
    popularity = h.target[:, rows.dim : rows.dense]
    # A candidate without a row has the key of id 0, but no popularity.
    mixed = mixed * ops.sign(popularity)
    return ops.log(1.0 + mixed * ops.exp(-mixture[:, :1] * (popularity - LOG_FLOOR / SCALE)))


def _mixture_layer() -> Any:
    from freshet_serving.compiler.frameworks import keras

    class MixtureLayer(keras.layers.Layer):  # type: ignore[misc]
        """The mixture of popularity and counts: w * SCALE, a1 and a2, [n, 3], the same for every row."""

        def build(self, *shapes: Any, **named: Any) -> None:
            self.weights_ = self.add_weight(shape=(3,), initializer="zeros", name="weights")

        def call(self, mask: Tensor) -> Tensor:
            w, a = (1.0 + FASTER * self.weights_[:1]) * SCALE, FASTER * self.weights_[1:]
            return keras.ops.zeros_like(mask[:, :1]) + keras.ops.expand_dims(keras.ops.concatenate([w, a]), 0)

    return MixtureLayer(name="mixture")
