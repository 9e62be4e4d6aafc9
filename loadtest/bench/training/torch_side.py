"""PyTorch on a CPU: EmbeddingBag(sparse=True) a feature, a sparse optimizer for its rows, Adam for the network.

Run in an environment with torch and numpy. Arguments: batch rows, table rows, threads, adagrad or adam for
the rows, whether to compile.
"""

# mypy: ignore-errors

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from torch import nn

from loadtest.bench.training.race_shape import DENSE_RATE, DIM, FEATURES, HIDDEN, RATE, WIDTH, RaceShape
from loadtest.bench.training.turns import serve


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (WIDTH, *HIDDEN)
        layers = [part for i, o in zip(sizes, sizes[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1, bias=False))
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, x):
        vectors = x.view(-1, FEATURES, DIM)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True) * 0.5
        return (self.linear(x) + self.mlp(x) + pairs).squeeze(1)


def main():
    batch_rows, table_rows, threads = (int(word) for word in sys.argv[1:4])
    optimizer, compiled = sys.argv[4], bool(int(sys.argv[5]))
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = RaceShape(batch_rows, table_rows)
    ids, labels = (torch.from_numpy(part) for part in shape.rows())
    bags = nn.ModuleList(nn.EmbeddingBag(table_rows, DIM, mode="sum", sparse=True) for _ in range(FEATURES))
    for bag in bags:
        nn.init.uniform_(bag.weight, -0.01, 0.01)
    network = DeepFM()
    forward = torch.compile(network) if compiled else network
    if optimizer == "adagrad":
        rows = torch.optim.Adagrad(bags.parameters(), RATE, initial_accumulator_value=0.1)
    else:
        rows = torch.optim.SparseAdam(bags.parameters(), DENSE_RATE)
    dense = torch.optim.Adam(network.parameters(), DENSE_RATE)
    loss_of = nn.BCEWithLogitsLoss()
    at = 0

    def learn(steps):
        nonlocal at
        for _ in range(steps):
            part = slice(at, at + batch_rows)
            at = (at + batch_rows) % (shape.steps() * batch_rows)
            columns = ids[part]
            x = torch.cat([bag(columns[:, f : f + 1]) for f, bag in enumerate(bags)], dim=1)
            loss = loss_of(forward(x), labels[part])
            rows.zero_grad()
            dense.zero_grad()
            loss.backward()
            rows.step()
            dense.step()
        return float(loss.detach())

    serve(learn)


if __name__ == "__main__":
    main()
