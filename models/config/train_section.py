"""[train]: how rows and network learn."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from freshet_serving.models.config.toml_sections import parse_section, require_between, require_one_of, require_positive
from freshet_serving.models.embedding.optimizer import OPTIMIZERS, RowOptions
from freshet_serving.processor.errors import BadInput

SCHEDULES = ("constant", "linear", "cosine", "exponential")
STOP_BY = ("auc", "log_loss")
WIRES = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class TrainSettings(RowOptions):
    """[train]. learning_rate: of the embeddings; dense_learning_rate: of the network; holdout: the share of rows, the
    last in order, that is kept from training to measure on; shuffle_rows: of the full version, so many are mixed with
    each other in every epoch (models.data.shuffled; 0: learned in order); the others: see RowOptions. "" and 0 of
    optimizer, rates, accumulator and batch_rows: left out, for models.training.defaults.

    schedule, warmup_steps, schedule_steps, schedule_end: of all rates, see models.training.schedule; schedule_steps 0:
    as many as the full version takes. clip_norm: a row's gradient is at most so long; dense_clip_norm,
    dense_weight_decay: of the network, see models.dense.dense_optimizer. patience: so many epochs without a better
    stop_by of the held-out rows end the epochs, with the best one's weights; 0: never.
    wire: what rows and gradients are on their way between processes (models.parallel). seed: None where the file gives
    none: then the seeds of strings' hashes are secret (models.training.resolved_config)."""

    batch_rows: int = 0
    epochs: int = 1
    optimizer: str = ""
    learning_rate: float = 0.0
    dense_learning_rate: float = 0.0
    holdout: float = 0.1
    shuffle_rows: int = field(default=1 << 16, kw_only=True)
    initial_accumulator: float = field(default=0.0, kw_only=True)
    schedule: str = field(default="constant", kw_only=True)
    warmup_steps: int = field(default=0, kw_only=True)
    schedule_steps: int = field(default=0, kw_only=True)
    schedule_end: float = field(default=0.1, kw_only=True)
    clip_norm: float = field(default=0.0, kw_only=True)
    dense_clip_norm: float = field(default=0.0, kw_only=True)
    dense_weight_decay: float = field(default=0.0, kw_only=True)
    patience: int = field(default=0, kw_only=True)
    stop_by: str = field(default="auc", kw_only=True)
    wire: str = field(default="float32", kw_only=True)
    seed: int | None = None

    @property
    def known_seed(self) -> int:
        """Seed of all that is drawn but those of strings' hashes: 0 where the file gives none."""
        return self.seed or 0


def read_train(section: dict[str, Any]) -> TrainSettings:
    """[train], checked; raises BadInput."""
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
    """ROW_KEYS of [train], or of a table that has others."""
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
