"""EmbeddingBags, DLRM, and the dense parts of TorchRec's models, unchanged, on EmbeddingBags."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, floats, ids, padded
from loadtest.bench.foreign_models.builders.torch_export import save
from loadtest.bench.foreign_models.built import ROWS, TableUse

SPARSE = ("user", "item", "tags")
WIDE, FLOATS = 4, 5


def build(make, folder, **options):
    rows = {name: ids(ROWS, WIDE) for name in SPARSE} | {"floats": floats(ROWS, FLOATS)}
    save(folder, make(), rows, [TableUse(name, name, 0) for name in SPARSE], **options)


class Bags(nn.Module):
    """Three EmbeddingBags, stacked [n, 3, DIM]."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag(ITEMS, DIM, mode="sum") for name in SPARSE})

    def forward(self, *columns):
        return torch.stack([bag(column) for bag, column in zip(self.bags.values(), columns)], 1)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.out = Bags(), nn.Linear(len(SPARSE) * DIM + FLOATS, 1)

    def forward(self, user, item, tags, floats):
        return torch.sigmoid(self.out(torch.cat([self.bags(user, item, tags).flatten(1), floats], 1)))


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


def torchrec_dlrm():
    from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bags, self.dense = Bags(), DenseArch(FLOATS, [16, DIM])
            self.interaction = InteractionArch(len(SPARSE))
            self.over = OverArch(DIM + len(SPARSE) + len(SPARSE) * (len(SPARSE) - 1) // 2, [16, 1])

        def forward(self, user, item, tags, floats):
            return torch.sigmoid(self.over(self.interaction(self.dense(floats), self.bags(user, item, tags))))

    return Model()


def torchrec_deepfm():
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

    return Model()


MODELS = {
    "bag_sum": partial(build, Sum),
    "dlrm": partial(build, Dlrm),
    "dlrm_dynamo": partial(build, Dlrm, dynamo=True),
    "torchrec_dlrm": partial(build, torchrec_dlrm),
    "torchrec_deepfm": partial(build, torchrec_deepfm),
}
