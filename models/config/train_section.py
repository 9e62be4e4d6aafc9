"""Read and validate [train]: how table rows and network are trained."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class TrainSettings(RowOptions):
    """The section [train].

    "" and 0 of optimizer, rates, accumulator and batch_rows mean left out; models.training.defaults chooses.

    models.training.schedule computes the learning rates over time, models.dense.dense_optimizer the network's steps;
    models.data.shuffled shuffles rows.

    Attributes:
        schedule_steps: 0: as many as the full version takes.
        patience: The weights of the best epoch are kept.
        seed: None if the file gives none (models.training.resolved_config).
    """

    batch_rows: int = field(default=0, metadata=option("rows a step", empty=CHOSEN))
    epochs: int = field(default=1, metadata=option("how often the full version's rows are learned"))
    optimizer: str = field(
        default="",
        metadata=option("of the embeddings: `adagrad`, `adagrad_decay`, `adam`, `adamw`, `ftrl`, `sgd`", empty=CHOSEN),
    )
    learning_rate: float = field(default=0.0, metadata=option("of the embeddings; sgd has no default", empty=CHOSEN))
    dense_learning_rate: float = field(default=0.0, metadata=option("of the network", empty=CHOSEN))
    holdout: float = field(default=0.1, metadata=option("the last share of the rows, kept from training to measure on"))
    shuffle_rows: int = field(
        default=1 << 16,
        kw_only=True,
        metadata=option("of the full version, so many are mixed with each other in every epoch; 0: learned in order"),
    )
    initial_accumulator: float = field(
        default=0.0,
        kw_only=True,
        metadata=option(
            "where the squares begin that are added up (adagrad, adagrad_decay, ftrl)",
            empty=f"{CHOSEN}; 0.1 with a named optimizer",
        ),
    )
    schedule: str = field(
        default="constant", kw_only=True, metadata=option("of all rates: `constant`, `linear`, `cosine`, `exponential`")
    )
    warmup_steps: int = field(
        default=0, kw_only=True, metadata=option("rates grow from nothing in the first so many steps")
    )
    schedule_steps: int = field(
        default=0,
        kw_only=True,
        metadata=option("the rates have fallen after so many steps", empty="with the full version"),
    )
    schedule_end: float = field(
        default=0.1, kw_only=True, metadata=option("what of them is left then, and stays for the stream")
    )
    clip_norm: float = field(
        default=0.0, kw_only=True, metadata=option("the gradient of a row is at most so long; 0: any")
    )
    dense_clip_norm: float = field(default=0.0, kw_only=True, metadata=option("so is the network's; 0: any"))
    dense_weight_decay: float = field(default=0.0, kw_only=True, metadata=option("of the network, decoupled"))
    patience: int = field(
        default=0,
        kw_only=True,
        metadata=option("epochs end when so many have not been better on the held-out rows; 0: never"),
    )
    stop_by: str = field(default="auc", kw_only=True, metadata=option("what is better: `auc`, `log_loss`"))
    wire: str = field(
        default="float32",
        kw_only=True,
        metadata=option(
            "rows and gradients between processes: `float32`, `float16` ([processes.md](../how-to/processes.md))"
        ),
    )
    seed: int | None = field(
        default=None,
        metadata=option(
            "of everything that is drawn, so that runs repeat; left out: 0, and the seeds of strings' "
            "hashes are secret and new in each run ([strings](../how-to/train.md#strings))",
            empty="none",
        ),
    )

    @property
    def known_seed(self) -> int:
        """Seed of everything random except the hashes of strings: 0 if the file gives none."""
        return self.seed or 0


def read_train(section: dict[str, Any]) -> TrainSettings:
    """Read and validate [train]; raise BadInput if it is invalid."""
    train = parse_section(TrainSettings, section, "train")
    if "batch_rows" in section:
        require_between(train.batch_rows, 1, 1 << 20, "train.batch_rows")
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
        raise BadInput("train.patience: 0 wanted while train.holdout is 0, as nothing is held out to stop by")
    if train.patience and train.epochs == 1:
        raise BadInput("train.patience: 0 wanted while train.epochs is 1, or train.epochs as many as there may be")


def check_rows(train: TrainSettings, section: Collection[str], where: str) -> None:
    """Validate ROW_KEYS of [train], or of a table that overrides them.

    Args:
        train: The settings.
        section: Keys that the section has.
        where: Name of the section, for messages.

    Raises:
        BadInput: A value is invalid.
    """
    if "optimizer" in section:
        require_one_of(train.optimizer, OPTIMIZERS, f"{where}.optimizer")
    for key in ("learning_rate", "initial_accumulator"):
        if key in section:
            require_positive(getattr(train, key), f"{where}.{key}")
    if "optimizer" in section and train.optimizer == "sgd" and "learning_rate" not in section:
        raise BadInput(f"{where}.learning_rate: wanted with sgd, which has none that suits every table")
    for key in ("l1", "l2", "beta", "weight_decay"):
        require_between(getattr(train, key), 0, 1e6, f"{where}.{key}")
    require_between(train.accumulator_decay, 0, 1, f"{where}.accumulator_decay")
    require_between(train.decay_steps, 1, 2**53, f"{where}.decay_steps")
    for key in RowOptions.__dataclass_fields__.keys() & set(section) if train.optimizer else ():
        if key not in OPTIMIZERS[train.optimizer].reads:
            of = ", ".join(o.name for o in OPTIMIZERS.values() if key in o.reads)
            raise BadInput(f"{where}.{key}: only for {of}; the optimizer is {train.optimizer!r}")
