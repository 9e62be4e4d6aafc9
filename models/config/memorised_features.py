"""Features that memorise: `wide = true`, a linear weight for each id, and `counts = true`, how often it was right.

wide    a table of dim 1, whose rows are added to the logit (models.zoo.wide_weights)
counts  a table of dim 2, whose rows are how many training rows had the id, and how many of them a positive label; the
        network reads their log-odds and the logarithm of their number (models.zoo.counted_odds)

With a `dim` of its own the feature stays as it is, and what it memorises is a second feature, `<name>.wide` or
`<name>.counts`, with a table of that suffix; without one the feature is what it memorises alone. These features come
last, counts first, so that a network reads the columns before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.table_sections import ROW_KEYS, TableConfig
from freshet_serving.models.config.toml_sections import require
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.zoo.architectures import NEXT_ITEM

SEVERAL_OUTPUTS = ("mmoe", "esmm", "two_tower", *NEXT_ITEM)
"""Networks whose score is not the logit of one label alone."""
COUNTS, WIDE = "counts", "wide"
DIMS = {COUNTS: 2, WIDE: 1}
EXACT = "float32"
"""Row type of counts: fewer bits cannot count."""


def with_memorised_features(
    features: Sequence[FeatureConfig], raw: Mapping[str, Any], arch: str, labels: Sequence[str], loss: str = ""
) -> list[FeatureConfig]:
    """Return the features (without those of sequences), those of counts and then those of linear weights last.

    `loss` is the file's own, "" for the log-loss. Raises BadInput for more outputs than the score of one label.
    """
    others: list[FeatureConfig] = []
    memorised: dict[str, list[FeatureConfig]] = {kind: [] for kind in DIMS}
    for f in features:
        kinds = [kind for kind in DIMS if getattr(f, kind)]
        for kind in kinds:
            where = f"features.{f.name}.{kind}"
            one_score = arch not in SEVERAL_OUTPUTS and len(labels) == 1
            require(one_score, where, "a network with one output, the score of one label", arch)
            require(f.combiner != "none", where, "a combiner that adds rows up", f.combiner)
        if COUNTS in kinds:
            require(f.combiner == "sum", f"features.{f.name}.counts", "combiner 'sum', which counts need", f.combiner)
            require(not loss, f"features.{f.name}.counts", "the log-loss of labels from 0 to 1", loss)
        # Parts of a cross with decay have the section of the cross, which their table may be named after.
        beside = "dim" in next((raw[n] for n in (f.name, f.name.rpartition(".")[0]) if n in raw), {})
        if COUNTS in kinds and not beside:
            require(f.dtype in ("", EXACT), f"features.{f.name}.dtype", "'float32', which counts need", f.dtype)
        if beside or not kinds:
            others.append(dataclasses.replace(f, wide=False, counts=False))
        for kind in kinds:
            memorised[kind].append(_memorised(f, kind, alone=not beside and len(kinds) == 1))
    whole = [*others, *memorised[COUNTS], *memorised[WIDE]]
    names = [f.name for f in whole]
    for kind, of_kind in memorised.items():
        for f in of_kind:
            require(names.count(f.name) == 1, f"features.{f.name}", f"a name that no feature of {kind} has", f.name)
            dims = {other.dim for other in whole if other.table == f.table}
            where = f"features.{f.name}.{kind}"
            require(dims == {DIMS[kind]}, where, "a dim, or a table of its own", f.table)
    return whole


def memorised_tables(
    features: Sequence[FeatureConfig],
    tables: Mapping[str, TableConfig],
    raw: Mapping[str, Mapping[str, Any]],
    train: TrainSettings,
) -> dict[str, TableConfig]:
    """Return the settings of tables; rows of memorised features begin as 0, so that an unknown id changes nothing.

    Raises BadInput if counts are to be hashed or learned, or rows to be read more than once.
    """
    whole = dict(tables)
    for f in features:
        section, where = raw.get(f.table, {}), f"tables.{f.table}"
        if (f.wide or f.counts) and "init" not in section:
            whole[f.table] = dataclasses.replace(whole.get(f.table, TableConfig()), init="zeros")
        if f.counts:
            for key in ("init", "init_scale", "hash", "hash_rows", "hash_codes", *ROW_KEYS):
                require(key not in section, f"{where}.{key}", "none, because its rows are counts", section.get(key))
            whole[f.table] = dataclasses.replace(whole[f.table], train={"optimizer": "sgd", "learning_rate": 1.0})
            once = f"1, because features.{f.name} counts each row once (with model.arch, nothing counts unasked)"
            require(train.epochs < 2, "train.epochs", once, train.epochs)
    return whole


def _memorised(f: FeatureConfig, kind: str, alone: bool) -> FeatureConfig:
    """Return the feature of what a feature memorises: under its own name if it is that alone."""
    flags: dict[str, Any] = {COUNTS: kind == COUNTS, WIDE: kind == WIDE, "dim": DIMS[kind]}
    if kind == COUNTS:
        flags["dtype"] = EXACT
    if alone:
        # How often an id was right differs from distance to distance; what its weight is, the network scales.
        return dataclasses.replace(f, **flags, table=f.name if kind == COUNTS and f.decay else f.table)
    from_ = f.from_ or f.name if not f.cross else ""
    table = f"{f.name if kind == COUNTS else f.table}.{kind}"
    return dataclasses.replace(f, **flags, name=f"{f.name}.{kind}", from_=from_, table=table)
