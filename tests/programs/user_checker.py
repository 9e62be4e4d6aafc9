"""Check scores of kept users against what was published and sent, by plain numpy and no code of the product.

What a generation holds is kept as plain arrays, and what a user is as a plain list of events. The scores of a reply are
computed again from the events and the generation that it names, by HSTU or STCA over the user's events (their modules
in freshet_serving.models.zoo describe them). Where a reply names an older generation of the user's part, all that
depends on the user alone is computed from that one: also the share of the user's row in the layer above, with its bias.

The checker imports numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

NETWORKS = HSTU, STCA = "hstu", "stca"
LENGTH, LAYERS, HIDDEN = 320, 2, 16
UNITS = {HSTU: 48, STCA: 96}
"""As many as it takes for a server to keep what is computed of users: less than half a millisecond is not kept."""
USERS, ITEMS, ACTIONS = 80, 2000, 4
DIMS = {"user": 4, "item": 8, "action": 4}
SIZES = {"user": USERS, "item": ITEMS, "action": ACTIONS}
BUCKETS, BUCKET_WIDTH, MOST_SECONDS = 128, 0.301, 1 << 15
"""Buckets of the seconds between two events, and more seconds than lie between those of one history."""
BUCKET_OF = np.minimum(BUCKETS - 1, np.log(np.maximum(1, np.arange(MOST_SECONDS))) / BUCKET_WIDTH).astype(np.int64)
EARLIER = np.tri(LENGTH)
APART = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
TOLERANCE = 1e-5
"""Of a score, which is a sigmoid."""


def shapes(network=HSTU):
    """Shapes of a network's dense tensors by name."""
    event, row = DIMS["item"] + DIMS["action"], sum(DIMS.values()) - DIMS["action"] + 1
    by_name = _hstu_shapes(event) if network == HSTU else _stca_shapes(event)
    read = UNITS[HSTU] if network == HSTU else LAYERS * UNITS[STCA]
    by_name |= {"mlp_0/kernel": (row + read, HIDDEN), "mlp_0/bias": (HIDDEN,)}
    return by_name | {"mlp_out/kernel": (HIDDEN, 1), "mlp_out/bias": (1,)}


def _hstu_shapes(event):
    units = UNITS[HSTU]
    by_name = {"history_target/kernel": (DIMS["item"], units), "history_event/kernel": (event, units)}
    for i in range(LAYERS):
        for name in ("norm", "inner"):
            by_name |= {f"history_{name}_{i}/{part}": (units,) for part in ("gamma", "beta")}
        by_name |= {f"history_all_{i}/kernel": (units, 4 * units), f"history_all_{i}/bias": (4 * units,)}
        by_name |= {f"history_out_{i}/kernel": (units, units), f"history_out_{i}/bias": (units,)}
        by_name |= {f"history_bias_{i}/places": (LENGTH + 1,), f"history_bias_{i}/times": (BUCKETS,)}
    return by_name


def _stca_shapes(event):
    by_name, units = {}, UNITS[STCA]
    for i in range(LAYERS):
        inside = event if i == 0 else units
        by_name |= {f"history_{name}_{i}/kernel": (inside, units) for name in ("gate", "up")}
        by_name |= {f"history_{name}_{i}/kernel": (units, units) for name in ("down", "key")}
        by_name |= {f"history_norm_{i}/{part}": (units,) for part in ("gamma", "beta")}
        by_name |= {f"history_value_{i}/kernel": (event, units)}
        by_name |= {f"history_query_{i}/kernel": (i * units + DIMS["item"], units)}
    return by_name


def random_dense(name, shape, random):
    """A dense tensor whose every number matters to scores."""
    if name.endswith("/gamma"):
        return (1 + random.normal(0, 0.1, shape)).astype(np.float32)
    spread = 0.1 if len(shape) == 1 else shape[0] ** -0.5
    return random.normal(0, 1.0 if "_bias_" in name else spread, shape).astype(np.float32)


@dataclass(frozen=True)
class Contents:
    """The rows and dense tensors of one generation.

    tables: float32 [SIZES, DIMS] by table; a row that is missing is all 0. dense: tensors by name.
    """

    tables: dict
    dense: dict
    network: str = HSTU


def first_contents(random, network=HSTU):
    tables = {name: random.normal(0, 1, (SIZES[name], DIMS[name])).astype(np.float32) for name in DIMS}
    dense = {name: random_dense(name, shape, random) for name, shape in shapes(network).items()}
    return Contents(tables, dense, network)


@dataclass(frozen=True)
class Change:
    """A delta: keys of rows that get a new one, and that lose theirs, by table; names of tensors."""

    rows: dict
    removed: dict
    dense: tuple = ()


def changed(before, change, random):
    """Contents after a change, with new random values."""
    tables = dict(before.tables)
    for name in {*change.rows, *change.removed}:
        tables[name] = tables[name].copy()
        keys = change.rows.get(name, [])
        tables[name][keys] = random.normal(0, 1, (len(keys), DIMS[name]))
        tables[name][change.removed.get(name, [])] = 0
    dense = {name: random_dense(name, before.dense[name].shape, random) for name in change.dense}
    return replace(before, tables=tables, dense=before.dense | dense)


class Copy:
    """The history that a user must have: events (time, item, action), oldest first, at most LENGTH of the newest."""

    def __init__(self, key, events=()):
        self.key, self.events = key, []
        self.append(events)

    def append(self, events):
        """Add events that are not there yet, by time, behind those of the same time."""
        self._put([*self.events, *(event for event in events if event not in self.events)])

    def replace(self, events):
        """Put events in the place of those of the same times."""
        times = {event[0] for event in events}
        self._put([event for event in self.events if event[0] not in times] + list(events))

    def remove(self, events):
        """Take events back."""
        self.events = [event for event in self.events if event not in events]

    def _put(self, events):
        self.events = sorted(events, key=lambda event: event[0])[-LENGTH:]


def scores(contents, copy, items, prices, of_user=None):
    """Scores of candidates for a user, float64 [candidates]; of_user: contents of the user's part, if others."""
    of_user = contents if of_user is None else of_user
    w, ours = _in_float64(contents.dense), _in_float64(of_user.dense)
    tables = _in_float64(of_user.tables)
    times, met, actions = np.array(copy.events, np.int64).reshape(-1, 3).T
    events, target = np.concatenate([tables["item"][met], tables["action"][actions]], 1), contents.tables["item"][items]
    target = target.astype(np.float64)
    read = _hstu(w, ours, times, events, target) if contents.network == HSTU else _stca(w, ours, events, target)
    user_share = tables["user"][copy.key] @ ours["mlp_0/kernel"][: DIMS["user"]] + ours["mlp_0/bias"]
    others = np.concatenate([target, np.array(prices, np.float64)[:, None], read], 1)
    top = np.maximum(user_share + others @ w["mlp_0/kernel"][DIMS["user"] :], 0)
    return 1 / (1 + np.exp(-(top @ w["mlp_out/kernel"] + w["mlp_out/bias"])))[:, 0]


def _in_float64(arrays):
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _hstu(w, ours, times, events, target):
    """The candidates after all layers, each the event after the newest, at its time; ours: weights of the user."""
    n, asked, events = len(times), target @ w["history_target/kernel"], events @ ours["history_event/kernel"]
    apart_s = np.abs(times[:, None] - times)
    for i in range(LAYERS):
        places, seconds = ours[f"history_bias_{i}/places"], ours[f"history_bias_{i}/times"][BUCKET_OF]
        u, v, q, k = _parts(w, i, asked)
        all_u, all_v, all_q, all_k = _parts(ours, i, events)
        seen = _silu(q @ all_k.T + places[n - np.arange(n)] + seconds[apart_s[-1:].reshape(n)])
        own_bias = w[f"history_bias_{i}/places"][0] + w[f"history_bias_{i}/times"][0]
        itself = _silu((q * k).sum(1, keepdims=True) + own_bias)
        asked = _moved(w, i, u, (seen @ all_v + itself * v) / (LENGTH + 1)) + asked
        if i + 1 < LAYERS:
            weights = _silu(all_q @ all_k.T + places[APART[:n, :n]] + seconds[apart_s]) * EARLIER[:n, :n]
            events = _moved(ours, i, all_u, weights @ all_v / (LENGTH + 1)) + events
    return asked


def _stca(w, ours, events, target):
    """What each layer reads from the events for the candidates; ours: weights of the user."""
    read, moved = [], events
    for i in range(LAYERS):
        gate, up = (moved @ ours[f"history_{name}_{i}/kernel"] for name in ("gate", "up"))
        moved = _normed(ours, f"history_norm_{i}", (_silu(gate) * up) @ ours[f"history_down_{i}/kernel"])
        keys, values = moved @ ours[f"history_key_{i}/kernel"], events @ ours[f"history_value_{i}/kernel"]
        query = np.concatenate([*read, target], 1) @ w[f"history_query_{i}/kernel"]
        weights = query @ keys.T / np.sqrt(UNITS[STCA])
        weights = np.exp(weights - weights.max(1, keepdims=True, initial=-np.inf)) if len(events) else weights
        read.append(weights @ values / np.maximum(weights.sum(1, keepdims=True), np.finfo(float).tiny))
    return np.concatenate(read, 1)


def _parts(w, i, x):
    every = _silu(_normed(w, f"history_norm_{i}", x) @ w[f"history_all_{i}/kernel"] + w[f"history_all_{i}/bias"])
    return np.split(every, 4, axis=1)


def _moved(w, i, gate, attended):
    return (gate * _normed(w, f"history_inner_{i}", attended)) @ w[f"history_out_{i}/kernel"] + w[
        f"history_out_{i}/bias"
    ]


def _normed(w, name, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/gamma"] + w[f"{name}/beta"]


def _silu(x):
    return x / (1 + np.exp(-x))


def differ(expected, served):
    """Report whether scores are not those that are expected."""
    return len(served) != len(expected) or not np.abs(expected - served).max(initial=0.0) <= TOLERANCE
