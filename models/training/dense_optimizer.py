"""The optimizer of the dense network: Adam as Keras computes it, with optional decoupled weight decay and clipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.train_section import TrainSettings

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
NOT_DECAYED = ("bias", "gamma", "beta")
"""Parts of the names of weights without decay: these do not start near zero, or may be far from it."""


def correction(step: int) -> float:
    """Return Adam's bias correction of the rate at a step, counted from 1."""
    return float((1 - BETA_2**step) ** 0.5 / (1 - BETA_1**step))


def moved(
    settings: TrainSettings, sizes: Sequence[tuple[str, int]], vectors: Any, grad: Any, rate: Any, corrected: Any
) -> Any:
    """Return the vectors [3, n] (weights, first and second moments) after one step of Adam (Kingma and Ba, 2015).

    Decay is decoupled (Loshchilov and Hutter, 2019); clipping bounds the norm of all gradients (Pascanu et al., 2013).
    `corrected` is the learning rate times correction().
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
