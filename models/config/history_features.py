"""Features that are made of the events of a history: its last item, its last purchase, each event beside the candidate.

A feature with `from = "history.item"` reads a column of [sequences.history]: all of its events, or the newest that
`take` says, of those that `where` chooses. It is always a list, because a guest has no event. A cross may read such a
feature, or a column of a history as a whole. With `decay = "position"` it becomes several features of one table, each
of the events of some distances from the newest: their sums stay apart, and the network learns what each counts. With
`decay = "age"` they are those of some ages: of the hour before the newest event, the day, the week, the month.

So a network that reads features alone learns from histories, whose columns are then inputs, but not of the network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from freshet_serving.models.config.feature_sections import HASHED, FeatureConfig
from freshet_serving.models.config.toml_sections import require, require_between, require_one_of
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.zoo.architectures import WITHOUT_HISTORIES
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package import MAX_EVENTS

POSITION, AGE = "position", "age"
DECAYS = (POSITION, AGE)
AGES_S = {"": 0, "day": 3_600, "week": 86_400, "month": 7 * 86_400, "older": 30 * 86_400}
"""Parts of a cross by the age of events, each with its least age in seconds; the first has no name of its own."""
MAX_AGE_S = 2**52
LISTS = {"id": "ids", "string": "strings"}
"""Kinds of lists by those of their values."""


def history_columns(raw: Mapping[str, Any]) -> dict[str, int]:
    """Return the columns of all histories, `<sequence>.<column>`, each with its most events; errors are found later."""
    columns: dict[str, int] = {}
    for name, section in raw.items():
        names = section.get("columns") if isinstance(section, dict) else None
        if isinstance(names, dict):
            most = section.get("max_length", SequenceConfig.__dataclass_fields__["max_length"].default)
            columns |= {f"{name}.{key}": most if isinstance(most, int) else 1 for key in names}
    return columns


def with_history_features(
    features: Sequence[FeatureConfig], raw: Mapping[str, Any], histories: Mapping[str, int]
) -> list[FeatureConfig]:
    """Return the features, without those of sequences, with those made of events filled in. Raises BadInput."""
    features = [_of_events(f, raw.get(f.name, {})) if f.from_ in histories else f for f in features]
    by_name = {f.name: f for f in features}
    sides = {f.name: f.side for f in features} | dict.fromkeys(histories, "user")
    whole: list[FeatureConfig] = []
    for f in features:
        where = f"features.{f.name}"
        read = [name for name in f.cross if name in histories and name not in by_name]
        if f.from_ not in histories:
            require(f.take == 0 or bool(read), f"{where}.take", "a column of a history in from or cross", f.from_)
            require(not f.where, f"{where}.where", 'a column of a history in from, such as "history.item"', f.from_)
        of_events = bool(read) or any(by_name[name].window for name in f.cross if name in by_name)
        if of_events and "side" not in raw.get(f.name, {}):
            f = dataclasses.replace(f, side="user" if all(sides[name] == "user" for name in f.cross) else "item")
        if f.decay:
            require_one_of(f.decay, DECAYS, f"{where}.decay")
            require(len(read) == 1, f"{where}.decay", "a cross with one column of a history", ", ".join(f.cross))
        if f.equal:
            others = [other for other in features if other.name in f.cross and other.name not in read]
            fits = len(read) == 1 and all(other.kind in LISTS for other in others)
            require(fits, f"{where}.equal", "a cross of a column of a history and ids or strings", ", ".join(f.cross))
        if read:
            require_between(f.take, -MAX_EVENTS, 0, f"{where}.take")
            require(not (f.take and f.decay == AGE), f"{where}.take", "none beside decay = 'age'", f.take)
            newest = min(-f.take or MAX_EVENTS, *(histories[name] for name in read))
            f = dataclasses.replace(f, window=(0, newest) if f.take else ())
            parts = _aged(f) if f.decay == AGE else _decayed(f, newest)
            whole += parts if f.decay else [f]
        else:
            whole.append(f)
    names = [f.name for f in whole]
    for f in whole:
        require(names.count(f.name) == 1, f"features.{f.name}", "a name that no part of a cross with decay has", f.name)
    return whole


def check_history_kinds(features: Sequence[FeatureConfig], columns: Sequence[FeatureConfig]) -> None:
    """Raise BadInput unless features (of with_history_features) that are made of events agree with their columns."""
    by_name, named = {c.name: c for c in columns}, {f.name: f for f in features}
    for f in features:
        if f.decay == AGE and (times := age_times(f, by_name)) not in by_name:
            raise BadInput(
                f"features.{f.name}.decay: expected sequences.{times.partition('.')[0]}.time, the column of the"
                " events' times, got nothing"
            )
        if f.equal:
            events, other, *_ = sorted(f.cross, key=lambda name: name not in by_name)
            alike = (by_name[events].kind in HASHED) == (named[other].kind in HASHED)
            require(alike, f"features.{f.name}.equal", f"{events} and {other} of one kind, ids or strings", other)
        if not f.window or f.cross:
            continue
        column, where = by_name[f.column], f"features.{f.name}"
        if (f.kind in HASHED) != (column.kind in HASHED):
            raise BadInput(
                f"{where}.kind: expected {'string' if column.kind in HASHED else 'id'}, as {f.column} has, got"
                f" {'string' if f.kind in HASHED else 'id'}"
            )
        for key, value in f.where.items():
            sequence = f.column.partition(".")[0]
            others = [c.name.partition(".")[2] for c in columns if c.table and c.name.startswith(f"{sequence}.")]
            require_one_of(key, others, f"{where}.where")
            texts = by_name[f"{sequence}.{key}"].kind in HASHED
            fits = isinstance(value, str) if texts else isinstance(value, int) and -(2**63) <= value < 2**63
            require(fits, f"{where}.where.{key}", "a string" if texts else "an integer", value)


def age_times(f: FeatureConfig, columns: Collection[str]) -> str:
    """Return the input with the times of the events that a cross parts by age."""
    return f"{first_of(name for name in f.cross if name in columns).partition('.')[0]}.time"


def network_columns(
    columns: Sequence[FeatureConfig], features: Sequence[FeatureConfig], arch: str
) -> list[FeatureConfig]:
    """Return the columns of histories, with dim 0 where only features read them."""
    if arch not in WITHOUT_HISTORIES:
        return list(columns)
    names = {c.name for c in columns}
    read = {name.partition(".")[0] for f in features for name in (f.column, *f.cross) if name in names}
    return [dataclasses.replace(c, dim=0) if c.sequence and c.sequence.name in read else c for c in columns]


def _of_events(f: FeatureConfig, section: Mapping[str, Any]) -> FeatureConfig:
    where = f"features.{f.name}"
    require(f.kind in (*LISTS, *LISTS.values()), f"{where}.kind", "ids or strings, as a history has", f.kind)
    require(not f.transform, f"{where}.transform", "no transform of events", f.transform)
    require(f.padding is None, f"{where}.padding", "nothing: [sequences] has the history's padding", f.padding)
    require(not f.unsigned, f"{where}.unsigned", "nothing: events are as the history has them", "true")
    require(section.get("side", "user") == "user", f"{where}.side", "'user', whose history it is", f.side)
    require_between(f.take, -MAX_EVENTS, 0, f"{where}.take")
    if f.kind in LISTS:
        require(f.take == -1, f"{where}.take", f"-1 for kind {f.kind!r}, or kind {LISTS[f.kind]!r}", f.take)
    newest = -f.take or MAX_EVENTS
    return dataclasses.replace(f, kind=LISTS.get(f.kind, f.kind), side="user", window=(0, newest))


def _decayed(f: FeatureConfig, most: int) -> Iterator[FeatureConfig]:
    """Yield a cross for the newest event, one for the event before, for the two before that, then for 4, 8, 16, ..."""
    skip = 0
    while skip < most:
        count = min(max(1, skip), most - skip)
        last = skip + count
        distances = str(last) if count == 1 else f"{skip + 1}-{last}"
        yield dataclasses.replace(f, name=f"{f.name}.{distances}" if skip else f.name, window=(skip, count))
        skip += count


def _aged(f: FeatureConfig) -> Iterator[FeatureConfig]:
    for (part, youngest), oldest in zip(AGES_S.items(), [*[*AGES_S.values()][1:], MAX_AGE_S]):
        yield dataclasses.replace(f, name=f"{f.name}.{part}" if part else f.name, window=(youngest, oldest))
