"""PyTorch on a CPU in the races of steps, and DIN on a log of events; run in an environment with torch and numpy.

`ids BATCH_ROWS TABLE_ROWS THREADS OPTIMIZER COMPILED`: EmbeddingBag(sparse=True) a feature, a sparse optimizer for its
rows (adagrad or adam), Adam for the network. `histories ROWS.npz BATCH_ROWS`: a plain DIN over rows of sequence_rows,
Adam over everything, batches by index from memory. `events LOG.npz COLUMN,... HELD_OUT_SHARE SEED`: the same DIN, whose
rate and number of epochs are chosen on the last tenth of the fitted rows; prints a line of JSON: the AUC.
"""

# mypy: ignore-errors

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch
from torch import nn

from loadtest.bench.training.event_rivals import HISTORY, auc
from loadtest.bench.training.turns import DENSE_RATE, DIM, FEATURES, HIDDEN, RATE, RaceShape, serve

WIDTH = FEATURES * DIM
DIN_HIDDEN, ATTENTION, DIN_RATE = (128, 64), 64, 0.001
BATCH, RATES, EPOCHS = 256, (0.001, 0.003), 3


def mlp(*widths, bias=True):
    layers = [part for i, o in zip(widths, widths[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1, bias=bias))


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.linear = mlp(WIDTH, *HIDDEN, bias=False), nn.Linear(WIDTH, 1)

    def forward(self, x):
        vectors = x.view(-1, FEATURES, DIM)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) * 0.5
        return (self.linear(x) + self.mlp(x) + pairs).squeeze(1)


class PlainDIN(nn.Module):
    """Attention of the target over a history, and an MLP over all. events: by column of the target, that of the history
    which its table has too; 0 is no event. mean: weights are divided by the number of events."""

    def __init__(self, sizes, events, mean=False):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, DIM) for name, size in sizes.items()})
        self.events, self.mean = events, mean
        self.others = [name for name in sizes if name not in events]
        self.unit = mlp(4 * DIM * len(events), ATTENTION)
        self.mlp = mlp((2 * len(events) + len(self.others)) * DIM, *DIN_HIDDEN)

    def forward(self, rows):
        target = torch.cat([self.tables[name](rows[name]) for name in self.events], 1)
        events = torch.cat([self.tables[name](rows[history]) for name, history in self.events.items()], 2)
        each, there = target[:, None].expand_as(events), rows[next(iter(self.events.values()))] > 0
        weight = self.unit(torch.cat([each, events, each - events, each * events], 2)).squeeze(2) * there
        if self.mean:
            weight = weight / there.sum(1, keepdim=True).clamp(min=1)
        pooled = torch.bmm(weight[:, None], events).squeeze(1)
        return self.mlp(
            torch.cat([target, pooled, *(self.tables[name](rows[name]) for name in self.others)], 1)
        ).squeeze(1)


def step(optimizers, network, rows, label):
    loss = nn.functional.binary_cross_entropy_with_logits(network(rows), label)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss


def learn_ids(batch_rows, table_rows, threads, optimizer, compiled):
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    shape = RaceShape(int(batch_rows), int(table_rows))
    ids, labels = (torch.from_numpy(part) for part in shape.rows())
    bags = nn.ModuleList(nn.EmbeddingBag(shape.table_rows, DIM, mode="sum", sparse=True) for _ in range(FEATURES))
    for bag in bags:
        nn.init.uniform_(bag.weight, -0.01, 0.01)
    network = DeepFM()
    forward = torch.compile(network) if int(compiled) else network
    if optimizer == "adagrad":
        rows = torch.optim.Adagrad(bags.parameters(), RATE, initial_accumulator_value=0.1)
    else:
        rows = torch.optim.SparseAdam(bags.parameters(), DENSE_RATE)
    optimizers = rows, torch.optim.Adam(network.parameters(), DENSE_RATE)
    at = 0

    def learn(steps):
        nonlocal at
        for _ in range(steps):
            part = slice(at, at + shape.batch_rows)
            at = (at + shape.batch_rows) % (shape.steps() * shape.batch_rows)
            x = torch.cat([bag(ids[part, f : f + 1]) for f, bag in enumerate(bags)], dim=1)
            loss = step(optimizers, forward, x, labels[part])
        return float(loss.detach())

    serve(learn)


def learn_histories(path, batch_rows):
    rows, batch_rows = np.load(path), int(batch_rows)
    torch.manual_seed(0)
    names = ("user_id", "movie_id", "history")
    columns = {name: torch.from_numpy(rows[f"learned.{name}"]).long() for name in names}
    labels = torch.from_numpy(rows["learned.label"])
    network = PlainDIN(json.loads(str(rows["sizes"])), {"movie_id": "history"})
    adam, order, at = torch.optim.Adam(network.parameters(), DIN_RATE), torch.randperm(len(labels)), 0

    def learn(steps):
        nonlocal at
        for _ in range(steps):
            if at + batch_rows > len(labels):
                at = 0
            part = order[at : at + batch_rows]
            at += batch_rows
            loss = step([adam], network, {name: column[part] for name, column in columns.items()}, labels[part])
        return float(loss.detach())

    serve(learn)


def with_histories(log):
    """Return the columns, from 1 on, with the newest HISTORY liked items and categories before each row; 0 is none."""
    count = len(log["label"])
    items, categories = (np.zeros((count, HISTORY), np.int64) for _ in range(2))
    liked = {}
    columns = zip(*(log[name].tolist() for name in ("user_id", "item_id", "category", "label")))
    for row, (user, item, category, label) in enumerate(columns):
        events = liked.setdefault(user, [])
        for place, (i, c) in enumerate(events[-HISTORY:]):
            items[row, place], categories[row, place] = i + 1, c + 1
        if label > 0:
            events.append((item, category))
    ids = {name: log[name] + 1 for name in log if name not in ("label", "time")}
    return {name: torch.tensor(values) for name, values in (ids | {"items": items, "categories": categories}).items()}


def fitted_scores(rows, label, until, names, rate, epochs, seed):
    """Yield the scores of all rows behind `until`, after each epoch."""
    torch.manual_seed(seed)
    sizes = {name: int(rows[name].max()) + 1 for name in names}
    model = PlainDIN(sizes, {"item_id": "items", "category": "categories"}, mean=True)
    for table in model.tables.values():
        nn.init.normal_(table.weight, std=0.01)
    adam, order = torch.optim.Adam(model.parameters(), rate), np.random.default_rng(seed)
    for _ in range(epochs):
        for at in torch.tensor(order.permutation(until)).split(BATCH):
            step([adam], model, {n: v[at] for n, v in rows.items()}, label[at])
        with torch.no_grad():
            places = torch.arange(until, len(label)).split(4096)
            yield np.concatenate([model({n: v[at] for n, v in rows.items()}).numpy() for at in places])


def learn_events(path, names, held_out, seed):
    torch.set_num_threads(1)
    log, names, seed = dict(np.load(path, allow_pickle=False)), names.split(","), int(seed)
    label = log["label"].astype(np.float32)
    fitted = len(label) - round(len(label) * float(held_out))
    chosen = fitted - round(fitted * 0.1)
    rows, labels = with_histories(log), torch.tensor(label)
    tried = {
        (rate, epoch): auc(label[chosen:fitted], scores[: fitted - chosen])
        for rate in RATES
        for epoch, scores in enumerate(fitted_scores(rows, labels, chosen, names, rate, EPOCHS, seed), 1)
    }
    rate, epochs = max(tried, key=tried.get)
    *_, scores = fitted_scores(rows, labels, fitted, names, rate, epochs, seed)
    print(json.dumps({"PyTorch DIN": auc(label[fitted:], scores)}))


if __name__ == "__main__":
    {"ids": learn_ids, "histories": learn_histories, "events": learn_events}[sys.argv[1]](*sys.argv[2:])
