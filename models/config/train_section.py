"""[train]: how rows and network learn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from models.config.toml_sections import section_of, want_above_0, want_between, want_one_of
from models.embedding.optimizer import OPTIMIZERS, RowOptions
from processor.errors import BadInput


@dataclass(frozen=True, slots=True)
class TrainSettings(RowOptions):
    """[train]. learning_rate: of the embeddings; dense_learning_rate: of the network; holdout: the share of rows, the
    last in order, that is kept from training to measure on; the others: see RowOptions. "" and 0 of optimizer, rates,
    accumulator and batch_rows: left out, for models.training.defaults."""

    batch_rows: int = 0
    epochs: int = 1
    optimizer: str = ""
    learning_rate: float = 0.0
    dense_learning_rate: float = 0.0
    holdout: float = 0.1
    initial_accumulator: float = field(default=0.0, kw_only=True)
    seed: int = 0


def read_train(section: dict[str, Any]) -> TrainSettings:
    """[train], checked; raises BadInput."""
    train = section_of(TrainSettings, section, "train")
    if "batch_rows" in section:
        want_between(train.batch_rows, 1, 1 << 20, "train.batch_rows")
    want_between(train.epochs, 1, 10_000, "train.epochs")
    if "dense_learning_rate" in section:
        want_above_0(train.dense_learning_rate, "train.dense_learning_rate")
    check_rows(train, section, "train")
    want_between(train.holdout, 0, 0.9, "train.holdout")
    want_between(train.seed, 0, 2**32 - 1, "train.seed")
    return train


def check_rows(train: TrainSettings, section: Collection[str], where: str) -> None:
    """ROW_KEYS of [train], or of a table that has others."""
    if "optimizer" in section:
        want_one_of(train.optimizer, OPTIMIZERS, f"{where}.optimizer")
    for key in ("learning_rate", "initial_accumulator"):
        if key in section:
            want_above_0(getattr(train, key), f"{where}.{key}")
    if "optimizer" in section and train.optimizer == "sgd" and "learning_rate" not in section:
        raise BadInput(f"{where}.learning_rate: wanted with sgd, which has none that suits every table")
    for key in ("l1", "l2", "beta", "weight_decay"):
        want_between(getattr(train, key), 0, 1e6, f"{where}.{key}")
    want_between(train.accumulator_decay, 0, 1, f"{where}.accumulator_decay")
    want_between(train.decay_steps, 1, 2**53, f"{where}.decay_steps")
    for key in RowOptions.__dataclass_fields__.keys() & set(section) if train.optimizer else ():
        if key not in OPTIMIZERS[train.optimizer].reads:
            of = ", ".join(o.name for o in OPTIMIZERS.values() if key in o.reads)
            raise BadInput(f"{where}.{key}: only for {of}; the optimizer is {train.optimizer!r}")
