"""The optimizer of the dense network: Adam, with decoupled weight decay and clipping where they are asked for."""

from __future__ import annotations

from typing import Any

from compiler.frameworks import keras
from models.config.train_section import TrainSettings

NOT_DECAYED = ["bias", "gamma", "beta"]
"""Weights whose names have one of these begin nowhere near zero, or do no harm far from it."""


def dense_optimizer(settings: TrainSettings) -> Any:
    """A keras.Optimizer that is not built yet. Its state is the same whatever is asked for.

    dense_weight_decay: at each step a weight loses so much of itself, times the rate (Loshchilov and Hutter 2019).
    dense_clip_norm: the norm of all gradients together is at most that (Pascanu et al. 2013).
    """
    optimizer = keras.optimizers.Adam(
        settings.dense_learning_rate,
        weight_decay=settings.dense_weight_decay or None,
        global_clipnorm=settings.dense_clip_norm or None,
    )
    optimizer.exclude_from_weight_decay(var_names=NOT_DECAYED)
    return optimizer
