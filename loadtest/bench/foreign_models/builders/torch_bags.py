"""EmbeddingBags, DLRM, and the dense parts of TorchRec's models, unchanged, on EmbeddingBags."""

from __future__ import annotations

import torch
from torch import nn

from loadtest.bench.foreign_models.builders.torch_export import DIM, ITEMS, floats, ids, padded, save
from loadtest.bench.foreign_models.built import ROWS, TableUse

SPARSE = ("user", "item", "tags")
WIDE, FLOATS = 4, 5
USES = [TableUse(name, name, 0) for name in SPARSE]


def rows():
    return {name: ids(ROWS, WIDE) for name in SPARSE} | {"floats": floats(ROWS, FLOATS)}


class Bags(nn.Module):
    """Three EmbeddingBags, stacked [n, 3, DIM]."""

    def __init__(self, mode="sum"):
        super().__init__()
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag(ITEMS, DIM, mode=mode) for name in SPARSE})

    def forward(self, *columns):
        return torch.stack([bag(column) for bag, column in zip(self.bags.values(), columns)], 1)


def bag_sum(folder):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.out = Bags(), nn.Linear(len(SPARSE) * DIM + FLOATS, 1)

        def forward(self, user, item, tags, floats):
            return torch.sigmoid(self.out(torch.cat([self.bags(user, item, tags).flatten(1), floats], 1)))

    save(folder, Model(), rows(), USES)


def bag_mean_padding(folder):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.out = nn.EmbeddingBag(ITEMS, DIM, mode="mean", padding_idx=0), nn.Linear(DIM, 1)

        def forward(self, tags):
            return torch.sigmoid(self.out(self.bag(tags)))

    save(folder, Model(), {"tags": padded(ROWS, WIDE)}, [TableUse("tags", "tags", 0)], dynamo=True)


class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = Bags()
        self.bottom = nn.Sequential(nn.Linear(FLOATS, 16), nn.ReLU(), nn.Linear(16, DIM), nn.ReLU())
        pairs = len(SPARSE) * (len(SPARSE) + 1) // 2
        self.top = nn.Sequential(nn.Linear(DIM + pairs, 16), nn.ReLU(), nn.Linear(16, 1))
        size = len(SPARSE) + 1
        self.first, self.second = (torch.tensor(x) for x in zip(*[(i, j) for i in range(size) for j in range(i)]))

    def forward(self, user, item, tags, floats):
        dense = self.bottom(floats)
        vectors = torch.cat([dense.unsqueeze(1), self.bags(user, item, tags)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        return torch.sigmoid(self.top(torch.cat([dense, products], 1)))


def dlrm(folder):
    save(folder, Dlrm(), rows(), USES)


def dlrm_dynamo(folder):
    save(folder, Dlrm(), rows(), USES, dynamo=True)


def torchrec_dlrm(folder):
    from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.dense = Bags(), DenseArch(FLOATS, [16, DIM])
            self.interaction = InteractionArch(len(SPARSE))
            self.over = OverArch(DIM + len(SPARSE) + len(SPARSE) * (len(SPARSE) - 1) // 2, [16, 1])

        def forward(self, user, item, tags, floats):
            return torch.sigmoid(self.over(self.interaction(self.dense(floats), self.bags(user, item, tags))))

    save(folder, Model(), rows(), USES)


def torchrec_deepfm(folder):
    from torchrec.models.deepfm import DenseArch, FMInteractionArch, OverArch

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.dense = Bags(), DenseArch(FLOATS, 16, DIM)
            self.interaction = FMInteractionArch((len(SPARSE) + 1) * DIM, list(SPARSE), 8)
            self.over = OverArch(DIM + 8 + 1)

        def forward(self, user, item, tags, floats):
            vectors = dict(zip(SPARSE, self.bags(user, item, tags).unbind(1)))
            return self.over(self.interaction(self.dense(floats), vectors))

    save(folder, Model(), rows(), USES)
