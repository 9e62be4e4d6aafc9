"""Read and validate [train]: how table rows and network are trained."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.toml_sections import (
    CHOSEN,
    parse_section,
    require_between,
    require_one_of,
    require_positive,
)
from freshet_serving.models.embedding.optimizer import OPTIMIZERS, RowOptions
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option

SCHEDULES = ("constant", "linear", "cosine", "exponential")
STOP_BY = ("auc", "log_loss")
WIRES = ("float32", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings(RowOptions):
    """The section [train].

    "" and 0 of optimizer, rates, accumulator, batch_rows and epochs mean left out; models.training.defaults chooses.
    models.training.schedule computes the learning rates over time, models.training.dense_optimizer the network's steps;
    models.data.shuffled shuffles rows.

    Attributes:
        schedule_steps: 0: as many as the full version takes.
        patience: The weights of the best epoch are kept.
        seed: None if the file gives none (models.training.resolved_config).
    """

    batch_rows: int = option(0, "rows per step", empty=CHOSEN)
    epochs: int = option(0, "number of passes over the full version's rows", empty="1; for next-item networks chosen")
    optimizer: str = option(
        "", "optimizer of the embeddings: `adagrad`, `adagrad_decay`, `adam`, `adamw`, `ftrl`, `sgd`", empty=CHOSEN
    )
    learning_rate: float = option(0.0, "learning rate of the embeddings; sgd has no default", empty=CHOSEN)
    dense_learning_rate: float = option(0.0, "learning rate of the network", empty=CHOSEN)
    holdout: float = option(0.1, "share of the rows, the last ones, that is held out of training to measure on")
    shuffle_rows: int = option(
        1 << 16, "shuffle the full version's rows in windows of this many in every epoch; 0: train in order"
    )
    initial_accumulator: float = option(
        0.0,
        "initial value of the sum of squared gradients (adagrad, adagrad_decay, ftrl)",
        empty=f"{CHOSEN}; 0.1 with a named optimizer",
    )
    schedule: str = option("constant", "schedule of all learning rates: `constant`, `linear`, `cosine`, `exponential`")
    warmup_steps: int = option(0, "number of first steps in which rates grow from 0")
    schedule_steps: int = option(
        0, "number of steps until rates reach `schedule_end` of their value", empty="those of the full version"
    )
    schedule_end: float = option(0.1, "share of the rates that remains then, and for the stream")
    clip_norm: float = option(0.0, "largest norm of a row's gradient; 0: no limit")
    dense_clip_norm: float = option(0.0, "largest norm of the network's gradient; 0: no limit")
    dense_weight_decay: float = option(0.0, "weight decay of the network, decoupled")
    patience: int = option(0, "stop after this many epochs without improvement on the held-out rows; 0: never")
    stop_by: str = option("auc", "metric that `patience` compares: `auc`, `log_loss`")
    wire: str = option(
        "float32",
        "type of data sent between processes: `float32`, `float16` "
        "([distributed-training.md](../how-to/distributed-training.md))",
    )
    seed: int | None = option(
        None,
        "seed of all random numbers, so that runs repeat; left out: 0, and the seeds of strings' "
        "hashes are secret and new in each run ([strings](../how-to/train.md#strings))",
        empty="none",
    )

    @property
    def known_seed(self) -> int:
        """Seed of everything random except the hashes of strings: 0 if the file gives none."""
        return self.seed or 0


def read_train(section: dict[str, Any]) -> TrainSettings:
    train = parse_section(TrainSettings, section, "train")
    if "batch_rows" in section:
        require_between(train.batch_rows, 1, 1 << 20, "train.batch_rows")
    if "epochs" in section:
        require_between(train.epochs, 1, 10_000, "train.epochs")
    if "dense_learning_rate" in section:
        require_positive(train.dense_learning_rate, "train.dense_learning_rate")
    check_rows(train, section, "train")
    require_between(train.holdout, 0, 0.9, "train.holdout")
    require_between(train.shuffle_rows, 0, 1 << 24, "train.shuffle_rows")
    require_between(train.known_seed, 0, 2**32 - 1, "train.seed")
    _check_schedule(train, section)
    for key in ("clip_norm", "dense_clip_norm", "dense_weight_decay"):
        require_between(getattr(train, key), 0, 1e6, f"train.{key}")
    _check_stopping(train, section)
    require_one_of(train.wire, WIRES, "train.wire")
    return train


def _check_schedule(train: TrainSettings, section: Collection[str]) -> None:
    require_one_of(train.schedule, SCHEDULES, "train.schedule")
    for key in ("warmup_steps", "schedule_steps"):
        require_between(getattr(train, key), 0, 2**53, f"train.{key}")
    require_between(train.schedule_end, 1e-6, 1, "train.schedule_end")
    for key in ("schedule_steps", "schedule_end"):
        if key in section and train.schedule == "constant":
            raise BadInput(f"train.{key}: only with train.schedule {', '.join(SCHEDULES[1:])}; it is 'constant'")


def _check_stopping(train: TrainSettings, section: Collection[str]) -> None:
    require_between(train.patience, 0, 10_000, "train.patience")
    require_one_of(train.stop_by, STOP_BY, "train.stop_by")
    if "stop_by" in section and not train.patience:
        raise BadInput("train.stop_by: only with train.patience of 1 or more")
    if train.patience and not train.holdout:
        raise BadInput("train.patience: expected 0 while train.holdout is 0, because no rows are held out")
    if train.patience and train.epochs <= 1:
        raise BadInput("train.patience: expected 0 while train.epochs is 1; set train.epochs to the most there may be")


def check_rows(train: TrainSettings, section: Collection[str], where: str) -> None:
    """Raise BadInput unless ROW_KEYS of [train], or of a table that overrides them, are valid."""
    if "optimizer" in section:
        require_one_of(train.optimizer, OPTIMIZERS, f"{where}.optimizer")
    for key in ("learning_rate", "initial_accumulator"):
        if key in section:
            require_positive(getattr(train, key), f"{where}.{key}")
    if "optimizer" in section and train.optimizer == "sgd" and "learning_rate" not in section:
        raise BadInput(f"{where}.learning_rate: required with sgd, which has no default that suits every table")
    for key in ("l1", "l2", "beta", "weight_decay"):
        require_between(getattr(train, key), 0, 1e6, f"{where}.{key}")
    require_between(train.accumulator_decay, 0, 1, f"{where}.accumulator_decay")
    require_between(train.decay_steps, 1, 2**53, f"{where}.decay_steps")
    for key in RowOptions.__dataclass_fields__.keys() & set(section) if train.optimizer else ():
        if key not in OPTIMIZERS[train.optimizer].reads:
            of = ", ".join(o.name for o in OPTIMIZERS.values() if key in o.reads)
            raise BadInput(f"{where}.{key}: only for {of}; the optimizer is {train.optimizer!r}")
