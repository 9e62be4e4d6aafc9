"""Recommendation models of PyTorch, exported to ONNX with what they score: run by a Python that has PyTorch.

`python torch_models.py FOLDER EXPORTER`, where EXPORTER is torchscript, dynamo, or unoptimised: dynamo, told to leave
the graph as it is. For each model: FOLDER/<name>.onnx, FOLDER/<name>.npz with its inputs and scores at each size of
batch as `<rows>/<input>` and `<rows>/score`, and FOLDER/<name>.state.npz with its state_dict. An input of bags is there
as `<input>` and `<input>:offsets`. Ends with 3 where this PyTorch has no such exporter. Nothing of Freshet is imported,
and PyTorch 1.13 will do.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

ROWS = (1, 7, 64, 300)
BAG = 5
LACKING = 3


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    """Bags of ids with offsets, as in the reference code: sums; dot products of all pairs."""

    def __init__(self):
        super().__init__()
        self.inputs = {"dense": 4, "brand": "offsets", "shop": "offsets", "genre": "offsets"}
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, 8, mode="sum") for n in (50, 80, 30))
        self.bottom = mlp(4, 16, 8)
        self.top = mlp(8 + 6, 16, 1)
        pairs = [(i, j) for i in range(4) for j in range(i)]
        self.register_buffer("i", torch.tensor([p[0] for p in pairs]), persistent=False)
        self.register_buffer("j", torch.tensor([p[1] for p in pairs]), persistent=False)

    def forward(self, dense, brand, brand_offsets, shop, shop_offsets, genre, genre_offsets):
        x = self.bottom(dense)
        bags = ((brand, brand_offsets), (shop, shop_offsets), (genre, genre_offsets))
        rows = [table(ids, offsets) for table, (ids, offsets) in zip(self.tables, bags)]
        t = torch.stack([x, *rows], dim=1)
        z = torch.bmm(t, t.transpose(1, 2))
        return torch.sigmoid(self.top(torch.cat([x, z[:, self.i, self.j]], dim=1)))


class DcnV2(nn.Module):
    """One id a field, crosses of full and of low rank beside a deep network with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.inputs = {"dense": 3, "fields": ("ids", 4)}
        self.fields = nn.ModuleList(nn.Embedding(40, 6) for _ in range(4))
        width = 3 + 4 * 6
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.u = nn.Linear(width, 4, bias=False)
        self.v = nn.Linear(4, width)
        self.deep = nn.Sequential(
            nn.Linear(width, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8), nn.PReLU()
        )
        self.head = nn.Linear(width + 8, 1)

    def forward(self, dense, fields):
        x0 = torch.cat([dense, *(table(fields[:, i]) for i, table in enumerate(self.fields))], dim=1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        x = x0 * self.v(self.u(x)) + x
        return torch.sigmoid(self.head(torch.cat([x, self.deep(x0)], dim=1))).squeeze(-1)


class TwoTower(nn.Module):
    """The cosine of a user's and an item's vector: a history of fixed length as a mean, attention over it, tags of any
    number as a mean."""

    def __init__(self):
        super().__init__()
        self.inputs = {"user": ("ids", 0), "history": ("ids", BAG), "item": ("ids", 0), "tags": "offsets", "price": 1}
        self.users = nn.Embedding(60, 8)
        self.items = nn.Embedding(90, 8, padding_idx=0)
        self.seen = nn.EmbeddingBag(90, 8, mode="mean")
        self.tags = nn.EmbeddingBag(25, 8, mode="mean")
        self.query = nn.Linear(8, 8)
        self.user_tower = nn.Sequential(nn.Linear(24, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 8))
        self.item_tower = nn.Sequential(nn.Linear(17, 16), nn.ELU(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, user, history, item, tags, tags_offsets, price):
        u = self.users(user)
        keys = self.query(self.items(history))
        weights = torch.softmax((keys * u.unsqueeze(1)).sum(-1).masked_fill(history == 0, -1e9), dim=-1)
        attended = (weights.unsqueeze(-1) * keys).sum(1)
        left = self.user_tower(torch.cat([u, self.seen(history), attended], dim=-1))
        right = self.item_tower(torch.cat([self.items(item), self.tags(tags, tags_offsets), price], dim=-1))
        cosine = (nn.functional.normalize(left, dim=-1) * nn.functional.normalize(right, dim=-1)).sum(-1)
        return torch.sigmoid(self.scale * cosine)


MODELS = {"dlrm": Dlrm, "dcn_v2": DcnV2, "two_tower": TwoTower}


def bounds(model):
    """Input of ids -> how many rows its table has."""
    if isinstance(model, Dlrm):
        return {name: table.num_embeddings for name, table in zip(("brand", "shop", "genre"), model.tables)}
    if isinstance(model, DcnV2):
        return {"fields": 40}
    return {"user": 60, "history": 90, "item": 90, "tags": 25}


def batch(model, rows, random):
    """Arguments of forward, by name; of bags, some are empty, the last and the first too."""
    made, below = {}, bounds(model)
    for name, kind in model.inputs.items():
        if isinstance(kind, int):
            made[name] = random.standard_normal((rows, kind)).astype(np.float32)
        elif kind == "offsets":
            lengths = random.integers(0, 4, rows)
            lengths[[0, -1]] = 0 if rows > 7 else 2
            made[name] = random.integers(0, below[name], lengths.sum())
            made[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        else:
            made[name] = random.integers(0, below[name], (rows, kind[1]) if kind[1] else rows)
    return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in made.items()}


def export(model, example, path, exporter):
    names, arguments = list(example), tuple(example.values())
    bags = {name for name in names if f"{name}_offsets" in names}
    more = {"input_names": names, "output_names": ["score"]}
    if exporter == "torchscript":
        axes = {name: {0: f"{name}_entries" if name in bags else "batch"} for name in (*names, "score")}
        new = hasattr(torch, "export")
        more |= {"dynamic_axes": axes, "opset_version": 17 if new else 16} | ({"dynamo": False} if new else {})
    else:
        size = torch.export.Dim("batch", min=1, max=1 << 20)
        shapes = {name: {0: torch.export.Dim.DYNAMIC if name in bags else size} for name in names}
        more |= {"dynamic_shapes": shapes, "dynamo": True, "external_data": False, "optimize": exporter == "dynamo"}
    torch.onnx.export(model, arguments, str(path), **more)


def has_exporter(exporter):
    if exporter == "torchscript":
        return True
    return hasattr(torch, "export") and importlib.util.find_spec("onnxscript") is not None


def main(folder, exporter):
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in MODELS.items():
        torch.manual_seed(7)
        random = np.random.default_rng(7)
        model = kind()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
        model.eval()
        export(model, batch(model, 7, random), folder / f"{name}.onnx", exporter)
        kept = {}
        for rows in ROWS:
            made = batch(model, rows, random)
            with torch.no_grad():
                kept[f"{rows}/score"] = model(*made.values()).numpy()
            kept |= {f"{rows}/{k.replace('_offsets', ':offsets')}": v.numpy() for k, v in made.items()}
        np.savez(folder / f"{name}.npz", **kept)
        np.savez(folder / f"{name}.state.npz", **{k: v.numpy() for k, v in model.state_dict().items()})


if __name__ == "__main__":
    if not has_exporter(sys.argv[2]):
        sys.exit(LACKING)
    main(Path(sys.argv[1]), sys.argv[2])
