"""DIN as a plain PyTorch loop: nn.Embedding, Adam over everything, batches by index from memory.

Run in an environment with torch and numpy. Arguments: a file of rows (sequence_rows), batch rows.
"""

# mypy: ignore-errors

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch
from torch import nn

from loadtest.bench.training.turns import serve

DIM, HIDDEN, ATTENTION, RATE = 16, (128, 64), 64, 0.001


class PlainDIN(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.users, self.movies = (nn.Embedding(sizes[name], DIM) for name in ("user_id", "movie_id"))
        self.unit = nn.Sequential(nn.Linear(4 * DIM, ATTENTION), nn.ReLU(), nn.Linear(ATTENTION, 1))
        widths = (3 * DIM, *HIDDEN)
        layers = [part for i, o in zip(widths, widths[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, user, movie, history):
        t, h = self.movies(movie), self.movies(history)
        each = t[:, None].expand_as(h)
        weight = self.unit(torch.cat([each, h, each - h, each * h], dim=2)).squeeze(2) * (history > 0)
        pooled = torch.bmm(weight[:, None], h).squeeze(1)
        return self.mlp(torch.cat([self.users(user), t, pooled], dim=1)).squeeze(1)


def main():
    rows, batch_rows = np.load(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    names = ("user_id", "movie_id", "history")
    columns = [torch.from_numpy(rows[f"learned.{name}"]).long() for name in names]
    labels = torch.from_numpy(rows["learned.label"])
    network = PlainDIN(json.loads(str(rows["sizes"])))
    optimizer, loss_of = torch.optim.Adam(network.parameters(), RATE), nn.BCEWithLogitsLoss()
    order = torch.randperm(len(labels))
    at = 0

    def learn(steps):
        nonlocal at
        for _ in range(steps):
            if at + batch_rows > len(labels):
                at = 0
            part = order[at : at + batch_rows]
            at += batch_rows
            optimizer.zero_grad()
            loss = loss_of(network(*(column[part] for column in columns)), labels[part])
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    serve(learn)


if __name__ == "__main__":
    main()
