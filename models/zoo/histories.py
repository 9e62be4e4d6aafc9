"""Share among networks over histories: a sequence's rows, mask and target, and the layers that read them.

What is derived from a history's tensors alone is computed once a request, as long as the candidate enters late: a layer
computes the history's share and the candidate's share apart and adds them.

Products of three-dimensional tensors with weights are products of matrices: [n, L, d] is reshaped to [n * L, d].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from freshet_serving.models.zoo.arch import Arch
from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput, SequenceSpan
from freshet_serving.models.zoo.layers import LayerFactory, Tensor, columns, side_by_side
from freshet_serving.processor.errors import BadInput

FAR = 1e9
NORM_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class History:
    """One sequence as a network sees it.

    Attributes:
        length: Places, max_length of the sequence.
        input: The input of the dense graph [n, width].
        matched: Rows of the columns whose tables the candidate's features read too, side by side [n, length, d].
        events: Rows of all columns and their floats, side by side [n, length, e]; the matched ones first.
        mask: 1.0 where there is an event, [n, length].
        seconds: From each event to the newest [n, length]; None without times.
        target: The candidate's rows of the same tables, side by side [n, d].
        x: The dense input.
    """

    name: str
    length: int
    input: Tensor
    matched: Tensor
    events: Tensor
    mask: Tensor
    seconds: Tensor | None
    target: Tensor
    x: Tensor


def histories(x: Tensor, layout: DenseInput, arch: str) -> list[History]:
    """Return the histories of a network's inputs, by the layout of x and of the sequences. Raises BadInput."""
    if not layout.sequences:
        raise BadInput(f"sequences: expected a section [sequences.<name>] for {arch}, got none")
    return [history(x, layout, span) for span in layout.sequences]


def shared_tables(layout: DenseInput, span: SequenceSpan) -> str:
    """Return the tables of a sequence, and what makes a feature of side item read one of them."""
    tables = [c.table for c in span.columns if c.table]
    named = f"one of its tables, {', '.join(tables)}"
    for e in layout.embeddings:
        if e.table in tables and not e.length:
            return f'{named}; set side = "item" in [features.{e.name}], which has side {e.side!r}'
    return f'{named}; name its table in sequences.{span.name}.tables, and set side = "item" in its section'


def history(x: Tensor, layout: DenseInput, span: SequenceSpan) -> History:
    from freshet_serving.compiler.frameworks import keras

    ops, length = keras.ops, span.max_length
    packed = keras.Input((span.width,), name=span.name)
    items = {e.table: e for e in reversed(layout.embeddings) if e.side == "item" and not e.length}
    matched = [c for c in span.columns if c.table in items]
    if not matched:
        raise BadInput(
            f"sequences.{span.name}: expected a feature of side item that reads {shared_tables(layout, span)}"
        )

    def rows(c: ColumnSpan) -> Tensor:
        dim = c.dim if c.table else 1
        return ops.reshape(packed[:, c.offset : c.offset + dim * length], (-1, length, dim))

    def beside(parts: Sequence[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=2)

    first = span.columns[0]
    mask_at = first.offset + first.dim * length
    others = [c for c in span.columns if c not in matched]
    matched_rows = [rows(c) for c in matched]
    return History(
        span.name,
        length,
        packed,
        beside(matched_rows),
        beside([*matched_rows, *(rows(c) for c in others)]),
        packed[:, mask_at : mask_at + length],
        packed[:, span.width - length :] if span.timed else None,
        side_by_side([columns(x, [items[c.table]]) for c in matched]),
        x,
    )


def each_event(layer_factory: LayerFactory, events: Tensor, units: int, name: str, **options: object) -> Tensor:
    """Add a dense layer over every event: [n, L, d] -> [n, L, units]; options as for LayerFactory.dense."""
    from freshet_serving.compiler.frameworks import keras

    length, width = events.shape[1:]
    flat = layer_factory.dense(keras.ops.reshape(events, (-1, width)), units, name, **options)  # type: ignore[arg-type]
    return keras.ops.reshape(flat, (-1, length, units))


def normed(tensor: Tensor, name: str) -> Tensor:
    from freshet_serving.compiler.frameworks import keras

    return keras.layers.LayerNormalization(epsilon=NORM_EPSILON, name=name)(tensor)


def with_positions(events: Tensor, seed: int, name: str) -> Tensor:
    """Add a learned row to each place of events [n, length, d], the oldest event's first."""
    return _position_layer(seed, name)(events)


def with_rows_of_places(events: Tensor, places: Tensor, seed: int, name: str) -> Tensor:
    """Add a learned row to each event [n, length, d] by a number of its own below length, whole float32 [n, length]."""
    return _position_layer(seed, name)(events, places)


def _position_layer(seed: int, name: str) -> Any:
    from freshet_serving.compiler.frameworks import keras

    class PositionLayer(keras.layers.Layer):  # type: ignore[misc]
        def build(self, events_shape: Sequence[int], *others: Any) -> None:
            initial = keras.initializers.RandomNormal(stddev=0.02, seed=seed * 1_000_003 + 270_000)
            self.rows = self.add_weight(shape=(1, *events_shape[1:]), initializer=initial, name="rows")

        def call(self, events: Tensor, places: Tensor | None = None) -> Tensor:
            if places is None:
                return keras.ops.add(events, self.rows)
            return keras.ops.add(events, keras.ops.take(self.rows[0], keras.ops.cast(places, "int32"), axis=0))

    return PositionLayer(name=name)


def silu(tensor: Tensor) -> Tensor:
    """Return x * sigmoid(x), in operations that every backend has."""
    from freshet_serving.compiler.frameworks import keras

    return tensor * keras.ops.sigmoid(tensor)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return softmax over the last axis of the places with an event: padding weighs nothing, and no events sum to 0.

    Args:
        scores: [n, 1 or L, L].
        mask: 1.0 where a place counts, of the same rank.
    """
    from freshet_serving.compiler.frameworks import keras

    return keras.ops.softmax(scores + (mask - 1.0) * FAR, axis=-1) * mask


def over_histories(
    layout: DenseInput,
    name: str,
    layer_factory: LayerFactory,
    hidden: Sequence[int],
    read: Callable[[History], Sequence[Tensor]],
) -> Arch:
    """Return the network of an MLP, with layers mlp_<i> and mlp_out, over x and the matrices read from each history."""
    from freshet_serving.compiler.frameworks import keras

    x = keras.Input((layout.width,), name="x")
    sequences = histories(x, layout, name)
    parts = [part for h in sequences for part in read(h)]
    top = layer_factory.tower(side_by_side([x, *parts]), hidden, "mlp")
    logit = layer_factory.dense(top, 1, "mlp_out")
    return Arch.of(keras.Model([x, *(h.input for h in sequences)], logit, name=name))


def newest_event(h: History, events: Tensor) -> Tensor:
    """Return the newest of a history's events [n, length, d] as [n, d], 0 without events."""
    from freshet_serving.compiler.frameworks import keras

    ops = keras.ops
    # 1 at the newest event: the next place has none.
    after = ops.concatenate([h.mask[:, 1:], ops.zeros_like(h.mask[:, :1])], axis=1)
    newest = ops.expand_dims(h.mask * (1.0 - after), 1)
    return ops.squeeze(ops.matmul(newest, events), 1)
