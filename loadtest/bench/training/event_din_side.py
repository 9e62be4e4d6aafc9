"""DIN as a plain PyTorch network on a log of events: run by event_race in an environment with torch and numpy.

    python event_din_side.py LOG.npz COLUMN,... HELD_OUT_SHARE SEED

Rate and number of epochs are chosen on the last tenth of the fitted rows. Prints a line of JSON: the AUC.
"""

# mypy: ignore-errors

import json
import sys

import numpy as np
import torch
from event_rivals import HISTORY, auc
from torch import nn

DIM, HIDDEN, ATTENTION, BATCH = 16, (128, 64), 64, 256
RATES, EPOCHS = (0.001, 0.003), 3


class PlainDIN(nn.Module):
    """Attention over items and categories of the history, and an MLP over all."""

    def __init__(self, sizes, others):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, DIM) for name, size in sizes.items()})
        self.others = others
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.01)
        self.unit = nn.Sequential(nn.Linear(8 * DIM, ATTENTION), nn.ReLU(), nn.Linear(ATTENTION, 1))
        widths = ((4 + len(others)) * DIM, *HIDDEN)
        layers = [part for i, o in zip(widths, widths[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, rows):
        target = torch.cat([self.tables["item_id"](rows["item_id"]), self.tables["category"](rows["category"])], 1)
        events = torch.cat([self.tables["item_id"](rows["items"]), self.tables["category"](rows["categories"])], 2)
        each = target[:, None].expand_as(events)
        weight = self.unit(torch.cat([each, events, each - events, each * events], 2)).squeeze(2)
        there = rows["items"] > 0
        weight = weight * there / there.sum(1, keepdim=True).clamp(min=1)
        pooled = torch.bmm(weight[:, None], events).squeeze(1)
        others = [self.tables[name](rows[name]) for name in self.others]
        return self.mlp(torch.cat([target, pooled, *others], 1)).squeeze(1)


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
    model = PlainDIN(sizes, [name for name in names if name not in ("item_id", "category")])
    adam, order = torch.optim.Adam(model.parameters(), rate), np.random.default_rng(seed)
    for _ in range(epochs):
        mixed = torch.tensor(order.permutation(until))
        for start in range(0, until, BATCH):
            at = mixed[start : start + BATCH]
            loss = nn.functional.binary_cross_entropy_with_logits(model({n: v[at] for n, v in rows.items()}), label[at])
            adam.zero_grad()
            loss.backward()
            adam.step()
        with torch.no_grad():
            places = torch.arange(until, len(label)).split(4096)
            yield np.concatenate([model({n: v[at] for n, v in rows.items()}).numpy() for at in places])


def main(path, names, held_out, seed):
    torch.set_num_threads(1)
    log = dict(np.load(path, allow_pickle=False))
    label = log["label"].astype(np.float32)
    fitted = len(label) - round(len(label) * held_out)
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
    main(sys.argv[1], sys.argv[2].split(","), float(sys.argv[3]), int(sys.argv[4]))
