"""Training losses: a loss for each row, and each row's weight in the mean of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.model_section import LOG_LOSS, NetworkConfig
from freshet_serving.models.zoo.arch import resolve_function
from freshet_serving.processor.errors import BadInput

Float32s = NDArray[np.float32]
RowLoss = Callable[[Any, Any], Any]
"""(label, logits), each float32 [n], or [n, labels] for several labels -> the loss of each row [n]."""

TRIED_ROWS = 2


def row_loss(network: NetworkConfig) -> RowLoss:
    """Return the configured loss, tried on a few rows, or the log-loss, a weighted sum for several labels."""
    if network.loss and network.loss != LOG_LOSS:
        return _tried(resolve_function(network.loss, "model.loss"), len(network.labels))
    weights = tf.constant(network.label_weights or (1.0,) * len(network.labels), tf.float32)

    def log_loss(label: Any, logits: Any) -> Any:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(label, logits)
        return losses if len(network.labels) == 1 else tf.reduce_sum(losses * weights, axis=1)

    return log_loss


def mean_shares(rows: int, weight: Float32s | None) -> Float32s:
    """Return each row's share of the mean loss, float32 [rows]: weight / sum(weight) or 0; without weights equal."""
    if weight is None:
        return np.full(rows, 1.0 / rows, np.float32)
    total = weight.sum(dtype=np.float64)
    return (weight / total).astype(np.float32) if total else np.zeros(rows, np.float32)


def _tried(loss: RowLoss, labels: int) -> RowLoss:
    rows = tf.constant([0.0, 1.0]) if labels == 1 else tf.constant([[0.0] * labels, [1.0] * labels])
    arguments = "label and logits [n]" if labels == 1 else f"label and logits [n, {labels}]"
    try:
        losses = np.asarray(loss(rows, tf.zeros_like(rows)))
    except Exception as error:
        raise BadInput(f"model.loss: raised {type(error).__name__} for {arguments}: {str(error)[:200]}") from error
    if losses.shape != (TRIED_ROWS,) or losses.dtype != np.float32 or not np.isfinite(losses).all():
        got = f"{losses.dtype} {list(losses.shape)} of {TRIED_ROWS} rows"
        raise BadInput(f"model.loss: expected one finite float32 per row [n] for {arguments}, got {got}")
    return loss
