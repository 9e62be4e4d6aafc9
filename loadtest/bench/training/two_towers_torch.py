"""Two towers as a plain PyTorch loop: the side of two_towers that Freshet's is judged by.

Run in an environment with torch and numpy. Arguments: arrays of the rows, how many are learned, seed, settings as JSON.
The last line of the output has the figures.
"""

# mypy: ignore-errors

import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

USER, ITEM = ("user_id", "gender", "age", "occupation", "history"), ("movie_id", "genres", "year")
TABLES = {"history": "movie_id"}


class Tower(nn.Module):
    def __init__(self, names, tables, settings):
        super().__init__()
        self.names, self.tables = names, tables
        sizes = (settings["dim"] * len(names), *settings["hidden"])
        layers = [part for i, o in zip(sizes, sizes[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], settings["vector_dim"]))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, columns):
        parts = [self.tables[TABLES.get(name, name)](*columns[name]) for name in self.names]
        return functional.normalize(self.mlp(torch.cat(parts, 1)), dim=1)


class Rows:
    """The columns by number of row: (values, offsets) for an EmbeddingBag."""

    def __init__(self, arrays):
        self.arrays, self.sizes = {}, {}
        plain = [name for name in arrays.files if "." not in name]
        known = {name: arrays[name] for name in plain} | {
            name: arrays[f"{name}.values"] for name in ("genres", "history")
        }
        for name, values in known.items():
            table = TABLES.get(name, name)
            ids = np.unique(known[table])
            numbers = np.searchsorted(ids, values)
            self.sizes[table] = len(ids)
            splits = arrays[f"{name}.splits"] if f"{name}.splits" in arrays.files else np.arange(len(values) + 1)
            self.arrays[name] = numbers, splits

    def take(self, rows, names):
        columns = {}
        for name in names:
            values, splits = self.arrays[name]
            lengths = splits[rows + 1] - splits[rows]
            ends = np.cumsum(lengths)
            places = np.arange(ends[-1]) + np.repeat(splits[rows] - (ends - lengths), lengths)
            columns[name] = torch.from_numpy(values[places]), torch.from_numpy(ends - lengths)
        return columns


def main():
    settings, learned = json.loads(sys.argv[4]), int(sys.argv[2])
    # More threads wait for each other on a machine that has other work.
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[3]))
    random = np.random.default_rng(int(sys.argv[3]))
    data = Rows(np.load(sys.argv[1]))
    users, items = data.arrays["user_id"][0], data.arrays["movie_id"][0]
    tables = nn.ModuleDict(
        {name: nn.EmbeddingBag(size, settings["dim"], mode="mean") for name, size in data.sizes.items()}
    )
    for embeddings in tables.values():
        nn.init.uniform_(embeddings.weight, -settings["init_scale"], settings["init_scale"])
    user_tower, item_tower = Tower(USER, tables, settings), Tower(ITEM, tables, settings)
    scale = nn.Parameter(torch.tensor(settings["scale"]))
    dense = [*user_tower.mlp.parameters(), *item_tower.mlp.parameters(), scale]
    optimizers = (
        torch.optim.Adagrad(
            tables.parameters(),
            settings["learning_rate"],
            initial_accumulator_value=settings["initial_accumulator"],
        ),
        torch.optim.Adam(dense, settings["dense_learning_rate"]),
    )
    counts = np.bincount(items[:learned], minlength=data.sizes["movie_id"])
    # A row of each item, with its columns; those that are learned come first.
    known, firsts = np.unique(items, return_index=True)
    there = firsts[firsts < learned]
    for _ in range(settings["epochs"]):
        order = random.permutation(learned)
        for first in range(0, learned, settings["batch_rows"]):
            rows = order[first : first + settings["batch_rows"]]
            more = random.choice(there, min(settings["negatives"], len(there)), replace=False)
            of_users = user_tower(data.take(rows, USER))
            of_items = item_tower(data.take(np.concatenate([rows, more]), ITEM))
            names = items[np.concatenate([rows, more])]
            expected = len(rows) * counts[names] / learned + len(more) / len(there)
            logits = scale * of_users @ of_items.T - torch.from_numpy(np.log(expected)).float()
            _, of_step = np.unique(users[rows], return_inverse=True)
            chose = np.zeros((len(rows), data.sizes["movie_id"]), bool)
            chose[of_step, items[rows]] = True
            chosen = chose[of_step][:, names]
            chosen[np.arange(len(rows)), np.arange(len(rows))] = False
            logits = logits.masked_fill(torch.from_numpy(chosen), -1e9)
            loss = functional.cross_entropy(logits, torch.arange(len(rows)))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    with torch.no_grad():
        vectors = item_tower(data.take(firsts, ITEM))
        ranks = []
        for first in range(learned, len(items), 2048):
            rows = np.arange(first, min(first + 2048, len(items)))
            scores = user_tower(data.take(rows, USER)) @ vectors.T
            own = scores[torch.arange(len(rows)), torch.from_numpy(np.searchsorted(known, items[rows]))]
            ranks.append((scores >= own[:, None]).sum(1).numpy())
    ranks = np.concatenate(ranks)
    gains = np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0)
    figures = {"recall@10": (ranks <= 10).mean(), "recall@100": (ranks <= 100).mean(), "ndcg@10": gains.mean()}
    print(json.dumps({name: float(value) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
