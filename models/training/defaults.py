"""Choose what a training file leaves out of [train] by its features and rows; chosen() has the rules.

A choice is made once, before the first step, and kept in checkpoints: a model keeps its settings, whatever rows arrive
and whatever a later release would choose.
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
KEPT = (*CHOSEN, "epochs", "schedule_steps")
"""Values that a checkpoint keeps if the file left them out."""
BEFORE: Mapping[str, Any] = {
    "optimizer": "adagrad",
    "learning_rate": 0.05,
    "initial_accumulator": INITIAL_ACCUMULATOR,
    "dense_learning_rate": 0.001,
    "batch_rows": 512,
}
"""Values of settings left out, for checkpoints from before values were chosen."""
ONE_EPOCH: Mapping[str, Any] = {"epochs": 1}
"""Likewise, for checkpoints from before epochs were."""

NEXT_ITEM_VALUES: Mapping[str, Any] = {
    "optimizer": "adam",
    "initial_accumulator": INITIAL_ACCUMULATOR,
    "dense_learning_rate": 0.001,
    "batch_rows": 128,
}
NEXT_ITEM_RATE = 0.01
"""For next-item networks: the published settings of SASRec and HSTU; Adam uses a tenth of the rate."""
NEXT_ITEM_STEPS, FEWEST_EPOCHS, MOST_EPOCHS, EVENTS_AN_EPOCH = 1500, 5, 50, 8
RATE, RATE_ROWS, MOST_LONGER = 0.05, 20_000, 2.0
SMALL_ACCUMULATOR = 1e-6
FEWEST_BATCH_ROWS, MOST_BATCH_ROWS, STEPS = 32, 512, 350
DENSE_RATE, LEAST_DENSE_SHARE, MOST_COUNTING_SHARE = 0.001, 0.5, 3.0
RARE_ROWS, MOST_LARGER, FEWEST_STEPS = 4.0, 4, 32
"""Rows of the rarer label that a batch should have, the largest factor for it, and the steps that must be left."""


def chosen(
    settings: TrainSettings,
    features: list[FeatureConfig],
    rows: int | None,
    ones: float | None = None,
    histories: int | None = None,
    items: int = 0,
) -> TrainSettings:
    """Fill in [train]; values of the file stay.

    Adam moves every weight of the network by the rate, regardless of the gradient's length. If a batch has one row of
    the rarer label or none, the gradient's direction is chance, and all scores rise or fall together: deltas of good
    rows moved the mean score by up to 290 %. Larger batches and a lower rate of the network prevent that.

    Args:
        rows: Rows of the full version; None if unknown.
        ones: Share of labels that are 1; None if unknown, which counts as a half.
        histories: Of a pass of a next-item network, which gets NEXT_ITEM_VALUES; None for other networks.
        items: Likewise.

    Returns:
        The settings, with these defaults:

        optimizer             adagrad: each id's rate falls as it is met more often, so rare ids learn at once and
                              common ones settle, in one epoch as in an endless stream
        initial_accumulator   1e-6, so that an id's first step is as long as the rate whatever the batch; with an
                              optimizer that the file names 0.1, as in Keras
        learning_rate         0.05 for 20,000 rows and fewer, growing with their square root up to 0.1 for 80,000 and
                              more: the more is known of an id, the further its row may move; less if products of many
                              rows are summed, 2 / (features * sqrt(dim)), so that the first steps of all rows
                              together do not dominate a score; a tenth for Adam and AdamW
        batch_rows            the power of two for about 350 steps, 32 to 512: a small table needs steps more than
                              speed; up to four times that, at most 512, until a batch has about 4 rows of the rarer
                              label, as long as 32 steps are left
        dense_learning_rate   0.001; if a batch still has fewer of them, less by the root of their number, down to
                              0.0005; for a network that reads counts, which has one pass to learn what they say, more
                              by the same root, up to 0.003
        epochs                1; for a next-item network as many as have NEXT_ITEM_STEPS steps, but no more than one
                              for each EVENTS_AN_EPOCH events that an item has, and 5 at least: then it begins to
                              learn chances by heart, whose counts it has already
    """
    if histories is not None:
        rate = NEXT_ITEM_RATE * _share(settings.optimizer or NEXT_ITEM_VALUES["optimizer"])
        steps = max(1, math.ceil(histories / (settings.batch_rows or NEXT_ITEM_VALUES["batch_rows"])))
        events = (rows or 0) / items if items else math.inf
        most = min(MOST_EPOCHS, max(FEWEST_EPOCHS, events / EVENTS_AN_EPOCH))
        epochs = min(round(most), math.ceil(NEXT_ITEM_STEPS / steps))
        return filled(settings, {**NEXT_ITEM_VALUES, "learning_rate": rate, "epochs": epochs})
    optimizer = settings.optimizer or "adagrad"
    values: dict[str, Any] = {
        **ONE_EPOCH,
        "optimizer": optimizer,
        "initial_accumulator": INITIAL_ACCUMULATOR if settings.optimizer else SMALL_ACCUMULATOR,
        "learning_rate": _learning_rate(features, rows) * _share(optimizer),
        "batch_rows": _batch_rows(rows, rare := _rare(ones)),
    }
    batch_rows = settings.batch_rows or values["batch_rows"]
    enough = math.sqrt(batch_rows * rare / RARE_ROWS)
    most = MOST_COUNTING_SHARE if any(f.counts for f in features) else 1.0
    values["dense_learning_rate"] = DENSE_RATE * max(LEAST_DENSE_SHARE, min(most, enough))
    return filled(settings, values)


def filled(settings: TrainSettings, values: Mapping[str, Any]) -> TrainSettings:
    """Fill in what [train] leaves out."""
    return replace(settings, **{key: values[key] for key in KEPT if key in values and not getattr(settings, key)})


def scheduled(settings: TrainSettings, rows: int | None) -> TrainSettings:
    """Return [train] with a schedule that ends with the full version if its rows are known, unless the file ends it."""
    if settings.schedule == "constant" or settings.schedule_steps or rows is None:
        return settings
    tail = round(rows * settings.holdout)
    steps = settings.epochs * math.ceil((rows - tail) / settings.batch_rows) + math.ceil(tail / settings.batch_rows)
    return replace(settings, schedule_steps=max(1, steps - settings.warmup_steps))


def of_table(settings: TrainSettings, table: TableConfig) -> TrainSettings:
    """Return [train] for a single table.

    Without its own rate a table has that of [train], a tenth of it for Adam and AdamW if the optimizer differs. A
    hashed table's is divided by the rows of an id, because an id moves by all of them at once.
    """
    table_settings = replace(settings, **table.train)
    if "learning_rate" in table.train:
        return table_settings
    rate = table_settings.learning_rate * _share(table_settings.optimizer) / _share(settings.optimizer)
    return replace(table_settings, learning_rate=rate / rows_an_id(table))


def transformed(features: list[FeatureConfig], transforms: Mapping[str, str]) -> list[FeatureConfig]:
    """Return the features with a transform each: the file's, that of `transforms`, or 'none'."""
    return [f if f.transform else replace(f, transform=transforms.get(f.name, "none")) for f in features]


def kept(settings: TrainSettings) -> dict[str, Any]:
    """Return the filled-in settings that checkpoints keep."""
    return {key: value for key, value in asdict(settings).items() if key in KEPT}


def filled_line(before: TrainSettings, after: TrainSettings, rows: int | None) -> str:
    """Return one line about the values filled in, or ""."""
    parts = []
    if not before.optimizer or not before.learning_rate:
        parts.append(f"{after.optimizer} {after.learning_rate:.2g}")
    if not before.dense_learning_rate:
        parts.append(f"network {after.dense_learning_rate:.2g}")
    if not before.batch_rows:
        parts.append(f"batch {after.batch_rows}" + (f" for {rows:,} rows" if rows is not None else ""))
    if not before.epochs and after.epochs > 1:
        parts.append(f"{after.epochs} epochs")
    return f"defaults: {', '.join(parts)}" if parts else ""


def _learning_rate(features: list[FeatureConfig], rows: int | None) -> float:
    """Return Adagrad's rate of embeddings."""
    rate = RATE * min(MOST_LONGER, max(1.0, math.sqrt((rows or 0) / RATE_ROWS)))
    dims = [f.dim for f in features if f.dim and not (f.wide or f.counts)]
    return min(rate, 2 / (len(dims) * math.sqrt(max(dims)))) if dims else rate


def _share(optimizer: str) -> float:
    return 0.1 if optimizer in ("adam", "adamw") else 1.0


def _rare(ones: float | None) -> float:
    """Return the share of the rarer label, measured by the variance of labels."""
    return 0.25 if ones is None else ones * (1 - ones)


def _batch_rows(rows: int | None, rare: float) -> int:
    """Return the power of two nearest to rows / STEPS, or for RARE_ROWS of the rarer label if more, within bounds."""
    steps = MOST_BATCH_ROWS if rows is None else _nearest_power(rows / STEPS)
    usual = min(MOST_BATCH_ROWS, max(FEWEST_BATCH_ROWS, steps))
    larger = min(usual * MOST_LARGER, _nearest_power(RARE_ROWS / max(rare, 1e-9)))
    if rows is not None:
        larger = min(larger, 1 << int(math.log2(max(1.0, rows / FEWEST_STEPS))))
    return min(MOST_BATCH_ROWS, max(usual, larger))


def _nearest_power(number: float) -> int:
    return 1 << round(math.log2(max(1.0, number)))
