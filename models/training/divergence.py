"""Stop a run that has diverged, before anything that is not finite is saved or published.

Every loss is checked, which is free. Rows, weights and the optimizer's numbers are checked for each checkpoint, and so
before every publication, because a finite loss says nothing about the step after it. So checkpoints and versions are
finite, and a run with lower rates can continue from the newest checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from freshet_serving.models.embedding.variable import Changes
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import MOST_IN_ROW, all_below

if TYPE_CHECKING:
    # Code that only reads checkpoints needs no TensorFlow.
    from freshet_serving.models.training.trainer import Trainer

MOST_NAMED = 3


class SavedState(Protocol):
    epoch: int
    position: int
    version: int
    step: int


def check_loss(loss: float, trainer: Trainer, newest: Callable[[], SavedState | None]) -> None:
    """Raise BadInput if a loss, from before the last step, is not finite; `newest` is called only to raise."""
    if not math.isfinite(loss):
        raise _diverged(f"the loss is {loss}", trainer, newest())


def check_weights(tables: Mapping[str, Changes], trainer: Trainer, newest: Callable[[], SavedState | None]) -> None:
    """Raise BadInput if a row, a weight or an optimizer's number is not finite, or a row too large for a delta."""
    fault = ""
    for name, rows in tables.items():
        if not all_below(rows.rows, MOST_IN_ROW):
            fault = f"rows of table {name!r} hold NaN, infinity or numbers above {MOST_IN_ROW:.0e}"
        elif not all_below(rows.slots, math.inf):
            fault = f"the optimizer's numbers of table {name!r} hold NaN or infinity"
    dense = trainer.dense
    for arrays in (dense.weights(), dense.state.optimizer()):
        if not all(all_below(array, math.inf) for array in arrays.values()):
            fault = fault or "the network's weights hold NaN or infinity"
    if fault:
        raise _diverged(f"the last loss was finite, but {fault}", trainer, newest())


def _diverged(fault: str, trainer: Trainer, saved: SavedState | None) -> BadInput:
    where, published = "with the first row", "no version of this run was published"
    if saved is not None and (saved.position or saved.epoch):
        where = f"after row {saved.position:,}" + f" of epoch {saved.epoch + 1}" * (not saved.version)
    if saved is not None and saved.version:
        published = f"{trainer.manifest.model} {saved.version}.{saved.step} was published last"
    return BadInput(
        f"training diverged at step {trainer.steps:,}: {fault}, with {_rates(trainer)}; {published}. Lower these rates"
        f" or set train.clip_norm and train.dense_clip_norm, and run the command again, which continues {where}; if"
        " it diverges again, --new-version --from-scratch trains from new weights"
    )


def _rates(trainer: Trainer) -> str:
    settings, factor = trainer.settings, trainer.rate_factor
    rates = {"train.learning_rate": settings.learning_rate, "train.dense_learning_rate": settings.dense_learning_rate}
    table_rates = {name: rate for name, rate in trainer.rates.items() if rate != settings.learning_rate}
    rates |= {f"tables.{name}.learning_rate": rate for name, rate in list(table_rates.items())[:MOST_NAMED]}
    shown = ", ".join(f"{key} {rate:g}" for key, rate in rates.items())
    return shown if factor == 1.0 else f"{shown}, all times {factor:.3g} by the schedule"
