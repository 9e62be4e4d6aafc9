"""Divide a network at what depends on histories alone, so that a step computes it once for rows of the same history.

The first part computes such tensors for the distinct histories; each row of the second part reads its history's row.
Losses and gradients are the same but for the order of sums.

A network stays whole if the first part has no weights, because reading a history twice is as cheap as copying it: `din`
compares each event with the candidate first, and in `bst` the candidate is an event. So it does if the first part has a
state, such as dropout's, which would draw fewer numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import keras, tf

TRIED_ROWS = 3

Tensors = list[Any]


class HistoryDivision:
    """A network in two parts over the same variables."""

    def __init__(self, network: keras.Model, histories: Sequence[int], boundary: Tensors) -> None:
        """Make the parts of a model of logits at the boundary: the first part's tensors that the second reads."""
        self._histories = histories
        self._others = [i for i in range(len(network.inputs)) if i not in histories]
        read = {str(n): tensor for n, tensor in enumerate(boundary)}
        self._first = keras.Model([network.inputs[i] for i in histories], read)
        self._second = keras.Model([*(network.inputs[i] for i in self._others), *boundary], network.outputs[0])
        self._paths = [v.path for v in network.trainable_variables]
        self._other = [v.path for v in network.non_trainable_variables]
        tried = self._first([np.zeros((TRIED_ROWS, *t.shape[1:]), np.float32) for t in self._first.inputs])
        self._rows = {name: int(tensor.shape[0]) for name, tensor in tried.items()}

    @property
    def has_row_a_history(self) -> bool:
        return all(rows in (1, TRIED_ROWS) for rows in self._rows.values())

    def call(
        self, weights: Tensors, other: Sequence[Any], inputs: Sequence[Any], own: Any, training: bool
    ) -> tuple[Any, Tensors]:
        """Return the network's logits and other state; inputs that are histories have a row for each distinct one.

        `own` is the number of each row's histories, int32 [rows].
        """
        weight_of, state = dict(zip(self._paths, weights)), dict(zip(self._other, other))
        tensors = call_part(self._first, [inputs[i] for i in self._histories], weight_of, state, training)
        read = [tf.gather(tensors[name], own) if rows > 1 else tensors[name] for name, rows in self._rows.items()]
        logits = call_part(self._second, [*(inputs[i] for i in self._others), *read], weight_of, state, training)
        return logits, list(state.values())


def call_part(part: Any, inputs: Any, weights: Mapping[str, Any], state: dict[str, Any], training: bool) -> Any:
    """Call a model of some of a network's variables, given by path; return its outputs, and update the state."""
    others = [v.path for v in part.non_trainable_variables]
    outputs, after = part.stateless_call(
        [weights[v.path] for v in part.trainable_variables], [state[path] for path in others], inputs, training=training
    )
    state |= zip(others, after)
    return outputs


def divide(network: keras.Model, histories: Sequence[int]) -> HistoryDivision | None:
    """Return the parts of a model of logits whose `histories` are inputs by number; None if it stays whole."""
    alone = {id(tensor): i in histories for i, tensor in enumerate(network.inputs)}
    boundary, learns, has_state = dict[int, Any](), False, False
    waiting = [network.outputs[0]]
    while waiting:
        tensor = waiting[-1]
        operation, number, _ = tensor._keras_history
        before = operation._inbound_nodes[number].arguments.keras_tensors if id(tensor) not in alone else []
        missing = [source for source in before if id(source) not in alone]
        waiting.extend(missing)
        if missing or id(waiting.pop()) in alone:
            continue
        alone[id(tensor)] = bool(before) and all(alone[id(source)] for source in before)
        if alone[id(tensor)]:
            learns |= bool(getattr(operation, "trainable_variables", ()))
            has_state |= bool(getattr(operation, "non_trainable_variables", ()))
        else:
            boundary |= {id(source): source for source in before if alone[id(source)]}
    if not learns or has_state:
        return None
    division = HistoryDivision(network, histories, [*boundary.values()])
    return division if division.has_row_a_history else None
