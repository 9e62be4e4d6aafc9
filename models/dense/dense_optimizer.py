"""The optimizer of the dense network: Adam as Keras computes it, with decoupled weight decay and clipping where they
are asked for; a function of tensors, to be compiled with what comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.train_section import TrainSettings

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
NOT_DECAYED = ("bias", "gamma", "beta")
"""Weights whose names have one of these begin nowhere near zero, or do no harm far from it."""


def correction(step: int) -> float:
    """What the rate is multiplied by at a step, from 1, as both moments begin at zero."""
    return float((1 - BETA_2**step) ** 0.5 / (1 - BETA_1**step))


def moved(
    settings: TrainSettings, sizes: Sequence[tuple[str, int]], vectors: Any, grad: Any, rate: Any, corrected: Any
) -> Any:
    """Vectors [3, n] after one step of Adam (Kingma and Ba, 2015): weights, first and second moments. sizes: of the
    weights that lie one behind another in them, by name. grad: [n].

    dense_weight_decay: at each step a weight loses so much of itself, times the rate (Loshchilov and Hutter 2019).
    dense_clip_norm: the norm of all gradients together is at most that (Pascanu et al. 2013). rate, corrected: the
    learning rate, and that times correction().
    """
    weights, first, second = tf.unstack(vectors)
    if settings.dense_clip_norm:
        grad = tf.clip_by_norm(grad, settings.dense_clip_norm)
    if settings.dense_weight_decay:
        decays = [
            0.0 if any(word in name for word in NOT_DECAYED) else settings.dense_weight_decay for name, _ in sizes
        ]
        weights -= weights * tf.concat([tf.fill([size], decay) for (_, size), decay in zip(sizes, decays)], 0) * rate
    first += (grad - first) * (1 - BETA_1)
    second += (grad * grad - second) * (1 - BETA_2)
    return tf.stack([weights - first * corrected / (tf.sqrt(second) + EPSILON), first, second])
