"""Event logs whose next item follows from the last one."""

import numpy as np

from freshet_serving.models.config.train_config import parse_config

ITEMS = 12


def write_log(path, users=60, events=14, strings=False):
    """Write rows in the order of time: each user steps through the items one by one, from a place of their own."""
    random = np.random.default_rng(3)
    firsts = random.integers(0, ITEMS, users)
    lines = ["user_id,item_id,label,ts,seconds"]
    for at in range(events):
        for user in random.permutation(users):
            item = int(firsts[user] + at) % ITEMS
            name = f"i{item}" if strings else item + 100
            lines.append(f"{user},{name},1,{1000 + len(lines)},{at / 2}")
    path.write_text("\n".join(lines) + "\n")


def raw_config(folder, arch="sasrec_next", **sections):
    timed = {"time": "ts"} if arch == "hstu_next" else {}
    raw = {
        "model": {"name": "next", "arch": arch, "dropout": 0.0, "layers": 1},
        "data": {"path": str(folder / "log.csv"), "label": "label", "time": "ts"},
        "features": {"user_id": {"kind": "id", "side": "user"}, "item_id": {"kind": "id", "side": "item", "dim": 16}},
        "sequences": {
            "history": {
                "columns": {"item": "item_id"},
                "tables": {"item": "item_id"},
                "from_events": "user_id",
                "ties": "file",
                "max_length": 8,
                **timed,
            }
        },
        "train": {"epochs": 30, "batch_rows": 16, "learning_rate": 0.01, "dense_learning_rate": 0.01, "seed": 1},
        "publish": {"repository": str(folder / "repository"), "full_rows": 720, "delta_rows": 60},
    }
    for name, section in sections.items():
        raw[name] = raw.get(name, {}) | section
    return raw


def next_config(folder, arch="sasrec_next", **sections):
    return parse_config(raw_config(folder, arch, **sections))
