"""What a training file leaves out of [train], chosen by what is known of features and rows; chosen() says the rule.

A choice is made once, before the first step, and kept in the checkpoints: a model goes on as it began, whatever rows
have come since and whatever a later Freshet would choose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from models.config.feature_sections import FeatureConfig
from models.config.table_sections import TableConfig
from models.config.train_section import TrainSettings
from models.embedding.optimizer import INITIAL_ACCUMULATOR
from models.training.hash_choice import rows_an_id

CHOSEN = ("optimizer", "learning_rate", "initial_accumulator", "dense_learning_rate", "batch_rows")
KEPT = (*CHOSEN, "schedule_steps")
"""What a checkpoint keeps of what was left out."""
BEFORE: Mapping[str, Any] = {
    "optimizer": "adagrad",
    "learning_rate": 0.05,
    "initial_accumulator": INITIAL_ACCUMULATOR,
    "dense_learning_rate": 0.001,
    "batch_rows": 512,
}
"""What was left out of a file whose checkpoints are older than the choice is."""

RATE, RATE_ROWS, MOST_LONGER = 0.05, 20_000, 2.0
SMALL_ACCUMULATOR = 1e-6
FEWEST_BATCH_ROWS, MOST_BATCH_ROWS, STEPS = 32, 512, 350


def chosen(settings: TrainSettings, features: list[FeatureConfig], rows: int | None) -> TrainSettings:
    """[train] with all of it filled in; what the file says stays.

    rows: of the full version; None where nobody knows. Where the file says nothing:

    optimizer             adagrad: each id's rate falls as it is met more often, so rare ids learn at once and common
                          ones settle, in one epoch as in an endless stream
    initial_accumulator   1e-6, so that an id's first step is as long as the rate whatever the batch; with an optimizer
                          that the file names 0.1, as in Keras
    learning_rate         0.05 for 20,000 rows and fewer, with their root up to 0.1 for 80,000 and more: the more is
                          known of an id, the further its row may go; where products of many rows are added up less,
                          2 / (features * sqrt(dim)), so that all rows' first steps together do not throw a score
                          about; of Adam and AdamW a tenth
    dense_learning_rate   0.001
    batch_rows            the power of two for about 350 steps, 32 to 512: a small table needs steps more than speed
    """
    optimizer = settings.optimizer or "adagrad"
    values: dict[str, Any] = {
        "optimizer": optimizer,
        "initial_accumulator": INITIAL_ACCUMULATOR if settings.optimizer else SMALL_ACCUMULATOR,
        "learning_rate": _learning_rate(features, rows) * _share(optimizer),
        "dense_learning_rate": 0.001,
        "batch_rows": MOST_BATCH_ROWS if rows is None else _batch_rows(rows),
    }
    return filled(settings, values)


def filled(settings: TrainSettings, values: Mapping[str, Any]) -> TrainSettings:
    """[train] with `values` for what it leaves out, by key."""
    return replace(settings, **{key: values[key] for key in KEPT if key in values and not getattr(settings, key)})


def scheduled(settings: TrainSettings, rows: int | None) -> TrainSettings:
    """[train], filled in, whose schedule ends with the full version of so many rows where the file does not say when;
    it never ends where nobody knows."""
    if settings.schedule == "constant" or settings.schedule_steps or rows is None:
        return settings
    tail = round(rows * settings.holdout)
    steps = settings.epochs * math.ceil((rows - tail) / settings.batch_rows) + math.ceil(tail / settings.batch_rows)
    return replace(settings, schedule_steps=max(1, steps - settings.warmup_steps))


def of_table(settings: TrainSettings, table: TableConfig) -> TrainSettings:
    """[train] as a table has it. One without a rate of its own has that of [train]; with another optimizer, of Adam and
    AdamW a tenth of what the others have; hashed, divided by the rows of an id, which moves by all of them at once."""
    own = replace(settings, **table.train)
    if "learning_rate" in table.train:
        return own
    rate = own.learning_rate * _share(own.optimizer) / _share(settings.optimizer)
    return replace(own, learning_rate=rate / rows_an_id(table))


def transformed(features: list[FeatureConfig], transforms: Mapping[str, str]) -> list[FeatureConfig]:
    """The features with `transforms` for those that the file gives none, by name; 'none' for any other."""
    return [f if f.transform else replace(f, transform=transforms.get(f.name, "none")) for f in features]


def kept(settings: TrainSettings) -> dict[str, Any]:
    """What a checkpoint keeps of settings that are filled in."""
    return {key: value for key, value in asdict(settings).items() if key in KEPT}


def told(before: TrainSettings, after: TrainSettings, rows: int | None) -> str:
    """One line of what was filled in; "" where the file said all of it."""
    parts = []
    if not before.optimizer or not before.learning_rate:
        parts.append(f"{after.optimizer} {after.learning_rate:.2g}")
    if not before.dense_learning_rate:
        parts.append(f"network {after.dense_learning_rate:.2g}")
    if not before.batch_rows:
        parts.append(f"batch {after.batch_rows}" + (f" for {rows:,} rows" if rows is not None else ""))
    return f"defaults: {', '.join(parts)}" if parts else ""


def _learning_rate(features: list[FeatureConfig], rows: int | None) -> float:
    """Of embeddings, by adagrad."""
    rate = RATE * min(MOST_LONGER, max(1.0, math.sqrt((rows or 0) / RATE_ROWS)))
    dims = [f.dim for f in features if f.table]
    return min(rate, 2 / (len(dims) * math.sqrt(max(dims)))) if dims else rate


def _share(optimizer: str) -> float:
    return 0.1 if optimizer in ("adam", "adamw") else 1.0


def _batch_rows(rows: int) -> int:
    """The power of two nearest to rows / STEPS, within bounds."""
    nearest = 1 << round(math.log2(max(1.0, rows / STEPS)))
    return min(MOST_BATCH_ROWS, max(FEWEST_BATCH_ROWS, nearest))
