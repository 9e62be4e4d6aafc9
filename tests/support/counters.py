"""What an owner of counters has counted, by the names of its slots."""

from contextlib import suppress
from importlib import import_module

import numpy as np

from freshet_serving.processor.watching import note_batch

OWNERS = (
    "freshet_serving.serving.access.credentials",
    "freshet_serving.serving.telemetry.tracing",
    "freshet_serving.serving.extensions.recorder.request_recorder",
    "freshet_serving.processor.extensions.remote_rows.reader",
    "freshet_serving.processor.extensions.user_state.state_counters",
    "freshet_serving.processor.extensions.user_state.user_counters",
)
"""Modules whose counters docs/reference/metrics.md describes: those that a server has only where it was asked for."""


def note_scores(block, scores, requests=1, rows=None, padded=0, queue_s=0.0, sparse_s=0.0, dense_s=0.0):
    """Note a batch in a StatsBlock as a session does; return the block. rows: as many as scores by default."""
    array = np.asarray(scores, np.float32)
    note_batch(
        block.counts_address, block.sums_address, requests, array.size if rows is None else rows, padded,
        array.ctypes.data, array.size, queue_s, sparse_s, dense_s,
    )  # fmt: skip
    return block


def counted(owner):
    """Return the numbers of an owner's block by name."""
    return {slot.name: number for slot, number in owner.counted().items()}


def damaged(lookup):
    """Return the damaged values of a lookup of online features, by feature."""
    return {slot.value: number for slot, number in lookup.counted().items() if slot.label == "feature"}


def slots_of_owners():
    """Return the slots of OWNERS; an extension may be missing, or a library that it needs."""
    slots = []
    for name in OWNERS:
        with suppress(ImportError):
            slots += import_module(name).COUNTERS
    return slots
