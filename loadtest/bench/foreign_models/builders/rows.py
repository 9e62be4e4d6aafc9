"""Rows of inputs for the builders, and DeepCTR's columns, which both of its packages have; numpy alone."""

from __future__ import annotations

import numpy as np

from loadtest.bench.foreign_models.built import ROWS

ITEMS, USERS, DIM, STEPS = 50, 40, 8, 6
random = np.random.default_rng(11)


def ids(*shape, below=ITEMS, low=1, dtype=np.int64):
    return random.integers(low, below, shape).astype(dtype)


def padded(*shape, below=ITEMS, dtype=np.int64):
    """Histories of ids, each at least one long, with zeros behind."""
    lengths = random.integers(1, shape[1] + 1, shape[0])
    return ids(*shape, below=below, dtype=dtype) * (np.arange(shape[1]) < lengths[:, None]).astype(dtype)


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


def deepctr_columns(sparse, dense, listed):
    """Return user, item and price; a history by the item's table; tags, pooled. The arguments are a package's kinds."""
    plain = [sparse("user", USERS, embedding_dim=DIM), sparse("item", ITEMS, embedding_dim=DIM), dense("price")]
    item = sparse("hist_item", ITEMS, embedding_dim=DIM, embedding_name="item")
    tags = listed(sparse("tags", ITEMS, embedding_dim=DIM), maxlen=STEPS, combiner="mean")
    return plain, listed(item, maxlen=STEPS, length_name="seq_length"), tags


def deepctr_values(dtype=np.int64):
    """Return rows of all of DeepCTR's columns by name."""
    history = padded(ROWS, STEPS, dtype=dtype)
    return {
        "user": ids(ROWS, below=USERS, dtype=dtype),
        "item": ids(ROWS, dtype=dtype),
        "price": floats(ROWS),
        "hist_item": history,
        "tags": padded(ROWS, STEPS, dtype=dtype),
        "seq_length": (history != 0).sum(1).astype(dtype),
    }
