"""Choose what a file with [sequences] and without `model.arch` gets: `deepfm` that reads counts, and crosses to count.

A network over histories generalises, but needs many rows for it; on logs of 20,000 to 200,000 events counting was
ahead of each of them (loadtest/results/event-logs.md). So the file gets both, as if it said:

    arch = "deepfm"                     generalises over the features of the row
    counts = true                       for each plain feature, beside its embedding
    cross = [history column, candidate], take = -8, decay = "position", counts = true
                                        the newest item, the one before, the next two and the next four with the
                                        candidate; of further columns that both share, such as a category, the newest
                                        two
    cross = [item of the history, candidate], equal = true, counts = true
                                        how often the history has this very item, also beside each of its attributes:
                                        what holds for items that users come back to, or never do
    cross = [user, attribute], counts = true
    cross = [context, attribute], counts = true
                                        what the user, or the hour, has to do with the candidate's category
    train.shuffle_rows = 0              a row reads counts of what was before it, in the order of time as when served

The first column of a history is its item; what has fewer values, such as a category, comes after it.

Rejected: equals by distance (-0.007 on 20,000 rows where items are bought again) and of categories (-0.004 on a sparse
shop), crosses of user or context with the item itself (AUC fell by 0.004: rows that are seen once), two items for the
crosses (as good on six logs, but 0.03 less where a mood lasts for days), more than eight, shuffled rows (-0.002 to
-0.009), a lower rate for rows (0.03 suited a day's rhythm and cost 0.006 where tastes are long; models.zoo.field_gates
learn which it is), `din` beside the counts, and a choice by held-out rows, which would change from night to night.

A file that names `arch`, makes a feature of a history or counts anything gets what it says, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freshet_serving.models.zoo.architectures import DEFAULT_ARCH

DIM, MOST_CONTEXTS, MOST_ATTRIBUTES = 16, 4, 4
NEWEST_ITEMS, NEWEST_OTHERS = 8, 2

Sections = dict[str, Any]


def with_sequence_defaults(raw: Mapping[str, Any], labels: Sequence[str]) -> Sections:
    """Return the sections of a parsed file, completed if it leaves the choice to us; they are validated later."""
    sections = [raw.get(name, {}) for name in ("model", "features", "sequences", "train")]
    if not all(isinstance(section, dict) for section in sections):
        return dict(raw)
    model, features, sequences, train = sections
    if "arch" in model or "loss" in model or len(labels) > 1 or not _plain_file(features, sequences):
        return dict(raw)
    pairs = _pairs(features, sequences)
    if not pairs:
        return dict(raw)
    plain = [name for name, section in features.items() if _one_value(section)]
    defaults: Sections = {
        name: section | ({"counts": True, "dim": section.get("dim", DIM)} if name in plain else {})
        for name, section in features.items()
    }
    candidates = [candidate for _, candidate in pairs]
    for column, candidate in pairs:
        name = f"{column.replace('.', '-')}-{candidate}"
        newest = NEWEST_ITEMS if candidate == candidates[0] else NEWEST_OTHERS
        defaults[name] = {"cross": [column, candidate], "take": -newest, "decay": "position", "counts": True}
    others = [name for name in plain if name != candidates[0]]
    attributes = [name for name in others if name in candidates or features[name].get("side") == "item"]
    (column, candidate), *_ = pairs
    for beside in ([], *([name] for name in attributes[:MOST_ATTRIBUTES])):
        name = "-".join((column.replace(".", "-"), candidate, "equal", *beside))
        defaults[name] = {"cross": [column, candidate, *beside], "equal": True, "side": "item", "counts": True}
    users = [name for name in plain if features[name].get("side") == "user"]
    contexts = [name for name in plain if features[name].get("side", "context") == "context" and name not in candidates]
    for other in (*users[:1], *contexts[:MOST_CONTEXTS]):
        for attribute in attributes[:MOST_ATTRIBUTES]:
            defaults[f"{other}-{attribute}"] = {"cross": [other, attribute], "side": "item", "counts": True}
    in_order = {"shuffle_rows": 0} | train
    return dict(raw) | {"model": {"arch": DEFAULT_ARCH} | model, "features": defaults, "train": in_order}


def _plain_file(features: Sections, sequences: Sections) -> bool:
    """Return whether the sections can be read at all, and no feature is made of a history or counts by itself."""
    if not all(isinstance(section, dict) for section in (*features.values(), *sequences.values())):
        return False
    heads = tuple(f"{name}." for name in sequences)
    for section in features.values():
        crossed = section.get("cross") or ()
        names = [section.get("from"), *(crossed if isinstance(crossed, list) else ())]
        if "counts" in section or "wide" in section or any(str(name).startswith(heads) for name in names):
            return False
    return True


def _one_value(section: Sections) -> bool:
    return section.get("kind") in ("id", "string") and "cross" not in section


def _pairs(features: Sections, sequences: Sections) -> list[tuple[str, str]]:
    """Return each column of a history with the candidate's feature that shares its table or column of an event log."""
    pairs = []
    for sequence, section in sequences.items():
        columns, tables = section.get("columns"), section.get("tables", {})
        if not (isinstance(columns, dict) and isinstance(tables, dict)):
            continue
        for key, column in columns.items():
            for name, feature in features.items():
                shares = key in tables and feature.get("table", name) == tables[key]
                same = section.get("from_events") and feature.get("from", name) == column
                if (shares or same) and _one_value(feature) and feature.get("side", "item") != "user":
                    pairs.append((f"{sequence}.{key}", name))
                    break
    return pairs
