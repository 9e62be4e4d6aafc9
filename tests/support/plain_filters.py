"""Filters in plain Python, one item at a time, by what docs/extensions/top_items.md says of them and nothing else."""

from __future__ import annotations

import numpy as np

LISTS = {"tags", "sizes", "sellers"}
TEXTS = {"category", "tags"}


def passes(conditions, record):
    """Whether an item passes a filter; None is the record of an item without one."""
    return all(_clause(name, condition, record) for name, condition in conditions.items())


def _clause(name, condition, record):
    if isinstance(condition, dict) and "not" in condition:
        return not _clause(name, condition["not"], record)
    if record is None:
        return False
    values = record[name] if name in LISTS else [record[name]]
    return any(_matches(name, value, condition) for value in values if value not in (None, ""))


def _matches(name, value, condition):
    def held(number):
        return float(np.float32(number)) if name == "price" else number

    if isinstance(condition, dict):
        return value in [held(number) for number in condition["in"]]
    if isinstance(condition, list) and name not in TEXTS:
        low, high = condition
        return (low is None or held(low) <= value) and (high is None or value <= held(high))
    if isinstance(condition, list):
        return value in condition
    return value == held(condition)
