"""What a training file leaves out of [train], chosen by what is known of features and rows; chosen() says the rule.

A choice is made once, before the first step, and kept in the checkpoints: a model goes on as it began, whatever rows
have come since and whatever a later Freshet would choose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.embedding.optimizer import INITIAL_ACCUMULATOR
from freshet_serving.models.training.hash_choice import rows_an_id

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
DENSE_RATE, LEAST_DENSE_SHARE = 0.001, 0.5
RARE_ROWS, MOST_LARGER, FEWEST_STEPS = 4.0, 4, 32
"""Rows of the rarer label that a batch should have, how many times larger it is made for them at most, and how many
steps are to be left then."""


def chosen(
    settings: TrainSettings, features: list[FeatureConfig], rows: int | None, ones: float | None = None
) -> TrainSettings:
    """[train] with all of it filled in; what the file says stays.

    Adam moves every weight of the network by the rate, whatever the length of the gradient. Where a batch has one row
    of the rarer label or none, the gradient's direction is chance, and all scores rise or fall together: deltas of good
    rows moved the mean score by up to 290 %. Larger batches and a lower rate of the network mend that; tables are not
    the cause.

    Args:
        settings: as the file has it.
        features: of the model.
        rows: of the full version; None where nobody knows.
        ones: share of labels that are 1; None where nobody knows, which is taken for a half.

    Returns:
        The settings. Where the file says nothing:

    optimizer             adagrad: each id's rate falls as it is met more often, so rare ids learn at once and common
                          ones settle, in one epoch as in an endless stream
    initial_accumulator   1e-6, so that an id's first step is as long as the rate whatever the batch; with an optimizer
                          that the file names 0.1, as in Keras
    learning_rate         0.05 for 20,000 rows and fewer, with their root up to 0.1 for 80,000 and more: the more is
                          known of an id, the further its row may go; where products of many rows are added up less,
                          2 / (features * sqrt(dim)), so that all rows' first steps together do not throw a score
                          about; of Adam and AdamW a tenth
    batch_rows            the power of two for about 350 steps, 32 to 512: a small table needs steps more than speed; up
                          to four times that, 512 at most, until a batch has about 4 rows of the rarer label, as long as
                          32 steps are left
    dense_learning_rate   0.001; where a batch has fewer of them still, less by the root of their number, down to 0.0005
    """
    optimizer = settings.optimizer or "adagrad"
    values: dict[str, Any] = {
        "optimizer": optimizer,
        "initial_accumulator": INITIAL_ACCUMULATOR if settings.optimizer else SMALL_ACCUMULATOR,
        "learning_rate": _learning_rate(features, rows) * _share(optimizer),
        "batch_rows": _batch_rows(rows, rare := _rare(ones)),
    }
    batch_rows = settings.batch_rows or values["batch_rows"]
    enough = math.sqrt(batch_rows * rare / RARE_ROWS)
    values["dense_learning_rate"] = DENSE_RATE * max(LEAST_DENSE_SHARE, min(1.0, enough))
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


def _rare(ones: float | None) -> float:
    """The share of the rarer label, by its variance: what a label says of its row."""
    return 0.25 if ones is None else ones * (1 - ones)


def _batch_rows(rows: int | None, rare: float) -> int:
    """The power of two nearest to rows / STEPS, or to what holds RARE_ROWS of the rarer label if that is more; within
    bounds."""
    steps = MOST_BATCH_ROWS if rows is None else _nearest_power(rows / STEPS)
    usual = min(MOST_BATCH_ROWS, max(FEWEST_BATCH_ROWS, steps))
    larger = min(usual * MOST_LARGER, _nearest_power(RARE_ROWS / max(rare, 1e-9)))
    if rows is not None:
        larger = min(larger, 1 << int(math.log2(max(1.0, rows / FEWEST_STEPS))))
    return min(MOST_BATCH_ROWS, max(usual, larger))


def _nearest_power(number: float) -> int:
    return 1 << round(math.log2(max(1.0, number)))
