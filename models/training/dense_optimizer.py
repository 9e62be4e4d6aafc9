"""The optimizer of the dense network: Adam as Keras computes it, with decoupled weight decay and clipping where they
are asked for; a function of tensors, to be compiled with what comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.frameworks import tf
from models.config.train_section import TrainSettings

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
NOT_DECAYED = ("bias", "gamma", "beta")
"""Weights whose names have one of these begin nowhere near zero, or do no harm far from it."""

Tensors = list[Any]


def correction(step: int) -> float:
    """What the rate is multiplied by at a step, from 1, as both moments begin at zero."""
    return float((1 - BETA_2**step) ** 0.5 / (1 - BETA_1**step))


def moved(
    settings: TrainSettings,
    names: Sequence[str],
    weights: Sequence[Any],
    grads: Sequence[Any],
    moments: Sequence[Any],
    rate: Any,
    corrected: Any,
) -> tuple[Tensors, Tensors]:
    """Weights and moments after one step of Adam (Kingma and Ba, 2015). moments: two for each weight, side by side.

    dense_weight_decay: at each step a weight loses so much of itself, times the rate (Loshchilov and Hutter 2019).
    dense_clip_norm: the norm of all gradients together is at most that (Pascanu et al. 2013). rate, corrected: the
    learning rate, and that times correction().
    """
    if settings.dense_clip_norm:
        grads, _ = tf.clip_by_global_norm(list(grads), settings.dense_clip_norm)
    after: Tensors = []
    kept: Tensors = []
    for i, (name, weight, grad) in enumerate(zip(names, weights, grads)):
        if settings.dense_weight_decay and not any(word in name for word in NOT_DECAYED):
            weight = weight - weight * (settings.dense_weight_decay * rate)
        first = moments[2 * i] + (grad - moments[2 * i]) * (1 - BETA_1)
        second = moments[2 * i + 1] + (grad * grad - moments[2 * i + 1]) * (1 - BETA_2)
        after.append(weight - first * corrected / (tf.sqrt(second) + EPSILON))
        kept += [first, second]
    return after, kept
