"""Filters in plain Python, one item at a time, by what docs/extensions/top_items.md says of them and nothing else."""

from __future__ import annotations

import numpy as np

LISTS = {"tags", "sizes"}
TEXTS = {"category", "tags"}


def passes(wanted, record):
    """Whether an item passes a filter; None is the record of an item without one."""
    return all(_clause(name, what, record) for name, what in wanted.items())


def _clause(name, what, record):
    if isinstance(what, dict) and "not" in what:
        return not _clause(name, what["not"], record)
    if record is None:
        return False
    values = record[name] if name in LISTS else [record[name]]
    return any(_matches(name, value, what) for value in values if value not in (None, ""))


def _matches(name, value, what):
    def held(number):
        return float(np.float32(number)) if name == "price" else number

    if isinstance(what, dict):
        return value in [held(one) for one in what["in"]]
    if isinstance(what, list) and name not in TEXTS:
        low, high = what
        return (low is None or held(low) <= value) and (high is None or value <= held(high))
    if isinstance(what, list):
        return value in what
    return value == held(what)
