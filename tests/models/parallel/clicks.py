"""A table of clicks and its configuration, small, with ids that wait and leave, for whole runs of the command."""

import csv

import numpy as np

ROWS, FULL_ROWS, DELTA_ROWS = 6000, 3000, 1000

CONFIG = """
[model]
name = "clicks"
arch = "deepfm"
hidden = [8]
[data]
path = "{folder}/clicks.csv"
label = "label"
[features.user]
kind = "id"
dim = 4
[features.item]
kind = "id"
dim = 4
[features.price]
kind = "float"
[tables.user]
admit_after = 2
[tables.item]
evict_after_steps = 30
[train]
batch_rows = 100
optimizer = "{optimizer}"
learning_rate = 0.05
shuffle_rows = 500
[publish]
repository = "{folder}/{repository}"
full_rows = 3000
delta_rows = 1000
"""


def write_clicks(folder, repository="repository", optimizer="adagrad"):
    """The configuration's path."""
    random = np.random.default_rng(0)
    users, items = random.zipf(1.3, ROWS) % 700, random.zipf(1.3, ROWS) % 300
    price = random.normal(0, 1, ROWS).round(3)
    chance = 1 / (1 + np.exp(-(1.5 * np.sin(users) + np.cos(items) + 0.3 * price - 0.5)))
    with open(folder / "clicks.csv", "w") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "price", "label"])
        writer.writerows(zip(users, items, price, (random.random(ROWS) < chance).astype(int)))
    config = folder / f"{repository}.toml"
    config.write_text(CONFIG.format(folder=folder, repository=repository, optimizer=optimizer))
    return config
