"""PyTorch's networks over ids, bags and floats."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loadtest.bench.training.loops.rows import BAG, FLOATS, TRAINED_LENGTHS, Column

SIZE, DIM, WIDTH = 50, 8, 5
USER, ITEM, CITY = (Column(name, beyond=True) for name in ("user", "item", "city"))
PRICES, TAGS, SHOPS = Column("prices", FLOATS, width=WIDTH), Column("tags", BAG), Column("shops", BAG)


def adam(model):
    return [torch.optim.Adam(model.parameters(), 0.01)]


def momentum(model):
    return [torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)]


def adagrad(model):
    return [torch.optim.Adagrad(model.parameters(), 0.1)]


def sparse_adam(model):
    """SparseAdam for the tables, whose gradients are sparse, and Adam for all else."""
    rows = [m.weight for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
    rest = [p for p in model.parameters() if not any(p is row for row in rows)]
    return [torch.optim.SparseAdam(rows, 0.01), torch.optim.Adam(rest, 0.01)]


@dataclass(frozen=True)
class TorchNetwork:
    """A network, and how it is trained and exported.

    Attributes:
        name: Its name.
        make: Makes it with new weights.
        columns: Its inputs, in the order of its arguments.
        outputs: Names of its outputs.
        optimizers: Makes its optimizers.
        dynamo: Whether torch.onnx exports it by dynamo; otherwise by TorchScript.
        optimised: Whether the exporter optimises the graph and folds constants, as it does by default.
        takes_none: Whether it takes lists without an id.
        trained_lengths: Lengths of the lists that it is trained on.
    """

    name: str
    make: Callable[[], nn.Module]
    columns: tuple[Column, ...]
    outputs: tuple[str, ...] = ("score",)
    optimizers: Callable[[Any], list[Any]] = adam
    dynamo: bool = True
    optimised: bool = False
    takes_none: bool = False
    trained_lengths: tuple[int, ...] = TRAINED_LENGTHS


def table(sparse=False, size=SIZE, dim=DIM):
    """A table whose row of id 0 is zeros and stays so."""
    return nn.Embedding(size, dim, padding_idx=0, sparse=sparse)


def mlp(width, *hidden, out=1):
    sizes = (width, *hidden)
    parts = [part for i, o in zip(sizes, sizes[1:]) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(sizes[-1], out))


class Mlp(nn.Module):
    """Embeddings, floats, and batch normalisation in between."""

    def __init__(self, sparse=False):
        super().__init__()
        self.users, self.items, self.cities = (table(sparse) for _ in range(3))
        self.norm = nn.BatchNorm1d(3 * DIM + WIDTH)
        self.deep = mlp(3 * DIM + WIDTH, 16, 8)

    def forward(self, user, item, city, prices):
        x = torch.cat([self.users(user), self.items(item), self.cities(city), prices], 1)
        return torch.sigmoid(self.deep(self.norm(x)))


class DeepFm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(table(sparse=True) for _ in range(3))
        self.firsts = nn.ModuleList(table(sparse=True, dim=1) for _ in range(3))
        self.deep, self.bias = mlp(3 * DIM, 16), nn.Parameter(torch.zeros(1))

    def forward(self, user, item, city):
        ids = user, item, city
        rows = torch.stack([one(column) for one, column in zip(self.tables, ids)], 1)
        linear = sum(one(column) for one, column in zip(self.firsts, ids))
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True) * 0.5
        return torch.sigmoid(linear + pairs + self.deep(rows.flatten(1)) + self.bias)


class Dcn(nn.Module):
    """DCN-v2: two crosses of full rank beside a network, layer normalisation before."""

    def __init__(self):
        super().__init__()
        width = 3 * DIM + WIDTH
        self.tables, self.norm = nn.ModuleList(table() for _ in range(3)), nn.LayerNorm(width)
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.deep, self.out = mlp(width, 16, out=8), nn.Linear(width + 8, 1)

    def forward(self, user, item, city, prices):
        rows = [one(column) for one, column in zip(self.tables, (user, item, city))]
        first = x = self.norm(torch.cat([*rows, prices], 1))
        for cross in self.crosses:
            x = first * cross(x) + x
        return torch.sigmoid(self.out(torch.cat([x, self.deep(first)], 1)))


class Dlrm(nn.Module):
    """DLRM over bags of any length."""

    def __init__(self):
        super().__init__()
        self.tags, self.shops = (nn.EmbeddingBag(SIZE, DIM, mode="sum", sparse=True) for _ in range(2))
        self.users, self.bottom = table(sparse=True), mlp(WIDTH, 16, out=DIM)
        self.top = mlp(DIM + 6, 16)
        pairs = [(i, j) for i in range(4) for j in range(i)]
        self.register_buffer("first", torch.tensor([i for i, _ in pairs]), persistent=False)
        self.register_buffer("second", torch.tensor([j for _, j in pairs]), persistent=False)

    def forward(self, tags, tags_offsets, shops, shops_offsets, user, prices):
        dense = torch.relu(self.bottom(prices))
        bags = self.tags(tags, tags_offsets), self.shops(shops, shops_offsets)
        vectors = torch.stack([dense, *bags, self.users(user)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        return torch.sigmoid(self.top(torch.cat([dense, products], 1)))


class Bags(nn.Module):
    """One bag's mean and one's sum."""

    def __init__(self):
        super().__init__()
        self.tags, self.shops = nn.EmbeddingBag(SIZE, DIM, mode="mean"), nn.EmbeddingBag(SIZE, DIM, mode="sum")
        self.deep = mlp(2 * DIM, 16)

    def forward(self, tags, tags_offsets, shops, shops_offsets):
        return torch.sigmoid(self.deep(torch.cat([self.tags(tags, tags_offsets), self.shops(shops, shops_offsets)], 1)))


class TwoTowers(nn.Module):
    """Towers of normalised vectors; both read cities by one table."""

    def __init__(self):
        super().__init__()
        self.users, self.items, self.cities = table(sparse=True), table(sparse=True), table(sparse=True)
        self.user, self.item = mlp(2 * DIM, 16, out=DIM), mlp(2 * DIM, 16, out=DIM)

    def forward(self, user, city, item, shop):
        one = self.user(torch.cat([self.users(user), self.cities(city)], 1))
        other = self.item(torch.cat([self.items(item), self.cities(shop)], 1))
        one, other = nn.functional.normalize(one, dim=1), nn.functional.normalize(other, dim=1)
        return (one * other).sum(1, keepdim=True)


class Mmoe(nn.Module):
    """Three experts, two tasks."""

    def __init__(self):
        super().__init__()
        width = 2 * DIM + WIDTH
        self.users, self.items = table(), table()
        self.experts = nn.ModuleList(mlp(width, 16, out=8) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(width, 3) for _ in range(2))
        self.towers = nn.ModuleList(mlp(8, 8) for _ in range(2))

    def forward(self, user, item, prices):
        x = torch.cat([self.users(user), self.items(item), prices], 1)
        experts = torch.stack([expert(x) for expert in self.experts], 1)
        mixed = [(torch.softmax(gate(x), 1).unsqueeze(2) * experts).sum(1) for gate in self.gates]
        return tuple(torch.sigmoid(tower(one)) for tower, one in zip(self.towers, mixed))


class Bilinear(nn.Module):
    """A product by a matrix for each pair of fields, by a weight of three dimensions; weight norm, a temperature."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(table() for _ in range(3))
        self.pairs, self.temperature = nn.Parameter(torch.randn(3, DIM, DIM) * 0.3), nn.Parameter(torch.tensor(0.5))
        self.deep = nn.utils.parametrizations.weight_norm(nn.Linear(3 * DIM, 1))

    def forward(self, user, item, city):
        rows = [one(column) for one, column in zip(self.tables, (user, item, city))]
        mixed = [(rows[i] @ self.pairs[at]) * rows[j] for at, (i, j) in enumerate(((0, 1), (0, 2), (1, 2)))]
        return torch.sigmoid(self.deep(torch.cat(mixed, 1)) * self.temperature)


class Caser(nn.Module):
    """Convolutions over the last six items, and rows that a lookup keeps short."""

    def __init__(self):
        super().__init__()
        self.items, self.users = table(), nn.Embedding(SIZE, DIM, max_norm=1.0)
        self.rows, self.places = nn.Conv1d(DIM, 6, 3), nn.Conv1d(6, 4, 1)
        self.out = mlp(6 + 4 * DIM + DIM, 16)

    def forward(self, recent, user):
        steps = self.items(recent)
        across = torch.relu(self.rows(steps.transpose(1, 2))).amax(2)
        return torch.sigmoid(self.out(torch.cat([across, self.places(steps).flatten(1), self.users(user)], 1)))


class WeighedBag(nn.Module):
    """A bag of a fixed number of tags, each with its weight, and the largest of another."""

    def __init__(self):
        super().__init__()
        self.tags = nn.EmbeddingBag(SIZE, DIM, mode="sum")
        self.shops, self.deep = nn.EmbeddingBag(SIZE, DIM, mode="max"), mlp(2 * DIM, 16)

    def forward(self, tags, prices, shops):
        return torch.sigmoid(self.deep(torch.cat([self.tags(tags, per_sample_weights=prices), self.shops(shops)], 1)))


SHOP = Column("shop", beyond=True)
RECENT = Column("recent", width=6)
NETWORKS = (
    TorchNetwork("torch-mlp", Mlp, (USER, ITEM, CITY, PRICES), optimizers=momentum),
    TorchNetwork(
        "torch-mlp-script", lambda: Mlp(sparse=True), (USER, ITEM, CITY, PRICES), optimizers=sparse_adam, dynamo=False
    ),
    TorchNetwork("torch-mlp-optimised", Mlp, (USER, ITEM, CITY, PRICES), optimised=True),
    TorchNetwork("torch-deepfm", DeepFm, (USER, ITEM, CITY), optimizers=adagrad),
    TorchNetwork("torch-dcn", Dcn, (USER, ITEM, CITY, PRICES)),
    TorchNetwork("torch-dlrm", Dlrm, (TAGS, SHOPS, USER, PRICES), optimizers=sparse_adam, takes_none=True),
    TorchNetwork("torch-bags", Bags, (TAGS, SHOPS), optimizers=momentum, takes_none=True),
    TorchNetwork("torch-two-towers", TwoTowers, (USER, CITY, ITEM, SHOP), optimizers=sparse_adam),
    TorchNetwork("torch-mmoe", Mmoe, (USER, ITEM, PRICES), ("click", "buy")),
    TorchNetwork("torch-bilinear", Bilinear, (USER, ITEM, CITY)),
    TorchNetwork("torch-caser", Caser, (RECENT, Column("user"))),
    TorchNetwork("torch-weighed-bag", WeighedBag, (Column("tags", width=WIDTH), PRICES, Column("shops", width=WIDTH))),
)
