"""A log of what users chose, and training files of two towers over it."""

import numpy as np

from freshet_serving.models.config.train_config import parse_config

USERS, ITEMS, GROUPS = 40, 60, 4


def write_log(path, rows=1200, seed=0, label=True):
    """Write rows in which users choose items of their group, and rows of label 0 of any item."""
    random = np.random.default_rng(seed)
    lines = ["user_id,item_id,kind,label,ts"]
    for n in range(rows):
        user = int(random.integers(USERS))
        chosen = not label or random.random() < 0.7
        item = int(random.integers(ITEMS // GROUPS)) * GROUPS + user % GROUPS if chosen else int(random.integers(ITEMS))
        lines.append(f"u{user},{100 + item},k{item % 3},{int(chosen)},{1000 + n}")
    path.write_text("\n".join(lines) + "\n")


def raw_config(folder, **sections):
    """Return the sections of a training file over log.csv of a folder; those given are merged."""
    raw = {
        "model": {"name": "pairs", "arch": "two_tower", "hidden": [16], "vector_dim": 8, "negatives": 16},
        "data": {"path": str(folder / "log.csv"), "label": "label", "time": "ts"},
        "features": {
            "user_id": {"kind": "string", "side": "user", "dim": 8},
            "item_id": {"kind": "id", "side": "item", "dim": 8},
            "kind": {"kind": "string", "side": "item", "dim": 4},
        },
        "train": {
            "batch_rows": 64,
            "epochs": 1,
            "seed": 3,
            "learning_rate": 0.2,
            "optimizer": "adagrad",
            "dense_learning_rate": 0.01,
        },
        "publish": {"repository": str(folder / "repository"), "full_rows": 800, "delta_rows": 100},
    }
    for name, section in sections.items():
        raw[name] = raw.get(name, {}) | section
    return raw


def pairs_config(folder, **sections):
    return parse_config(raw_config(folder, **sections))
