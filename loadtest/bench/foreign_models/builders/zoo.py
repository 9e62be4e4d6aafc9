"""Models of torch-rechub, torchfm and pytorch-widedeep, unchanged, as their packages ship them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from loadtest.bench.foreign_models.builders.torch_export import (
    DIM,
    ITEMS,
    USERS,
    ByName,
    floats,
    ids,
    padded,
    save,
)
from loadtest.bench.foreign_models.built import ROWS, TableUse

STEPS = 10
FIELDS = (USERS, ITEMS, 12)
OFFSETS = np.array((0, *np.cumsum(FIELDS)[:-1]))
MLP = {"dims": [32, 16], "dropout": 0.2, "activation": "relu"}


def _rechub(folder, model, names, tables, outputs=("score",)):
    made = {
        "user": ids(ROWS, below=USERS),
        "item": ids(ROWS),
        "history": padded(ROWS, STEPS),
        "price": floats(ROWS),
    }
    inputs = {name: made[name] for name in names}
    uses = [TableUse(table, name, 0 if name == "history" else None) for name, table in tables.items()]
    save(folder, ByName(model, list(inputs)), inputs, uses, outputs)


def _columns():
    from torch_rechub.basic.features import DenseFeature, SparseFeature

    return [SparseFeature("user", USERS, DIM), SparseFeature("item", ITEMS, DIM)], [DenseFeature("price")]


PLAIN = {"user": "user", "item": "item"}


def rechub_deepfm(folder):
    from torch_rechub.models.ranking import DeepFM

    sparse, dense = _columns()
    _rechub(folder, DeepFM(sparse + dense, sparse, MLP), ("user", "item", "price"), PLAIN)


def rechub_widedeep(folder):
    from torch_rechub.models.ranking import WideDeep

    sparse, dense = _columns()
    _rechub(folder, WideDeep(dense, sparse, MLP), ("user", "item", "price"), PLAIN)


def rechub_dcn_v2(folder):
    from torch_rechub.models.ranking import DCNv2

    sparse, dense = _columns()
    model = DCNv2(sparse + dense, 3, MLP, use_low_rank_mixture=True, low_rank=4, num_experts=2)
    _rechub(folder, model, ("user", "item", "price"), PLAIN)


def rechub_din(folder):
    from torch_rechub.basic.features import SequenceFeature
    from torch_rechub.models.ranking import DIN

    sparse, _ = _columns()
    history = SequenceFeature("history", ITEMS, DIM, pooling="concat", shared_with="item")
    attention = {"dims": [16], "activation": "dice", "use_softmax": False}
    model = DIN(sparse[:1], [history], sparse[1:], {"dims": [32, 16]}, attention)
    _rechub(folder, model, ("user", "item", "history"), PLAIN | {"history": "item"})


def rechub_mmoe(folder):
    from torch_rechub.models.multi_task import MMOE

    sparse, dense = _columns()
    tower = {"dims": [8]}
    model = MMOE(sparse + dense, ["classification"] * 2, 3, {"dims": [16]}, [tower, tower])
    _rechub(folder, model, ("user", "item", "price"), PLAIN, ("scores",))


def _torchfm(folder, model):
    x = np.stack([ids(ROWS, below=size) for size in FIELDS], 1)
    uses = [
        TableUse(f"field {i}", "x", i, row_of_one=1 + int(offset), row_of_other=2 + int(offset))
        for i, offset in enumerate(OFFSETS)
    ]
    save(folder, model, {"x": x}, uses)


def torchfm_deepfm(folder):
    from torchfm.model.dfm import DeepFactorizationMachineModel

    _torchfm(folder, DeepFactorizationMachineModel(FIELDS, DIM, (16, 16), 0.2))


def torchfm_xdeepfm(folder):
    from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

    _torchfm(folder, ExtremeDeepFactorizationMachineModel(FIELDS, DIM, (16, 16), 0.2, (8, 8)))


def torchfm_autoint(folder):
    from torchfm.model.afi import AutomaticFeatureInteractionModel

    _torchfm(folder, AutomaticFeatureInteractionModel(FIELDS, DIM, 16, 2, 2, (16, 16), (0.0, 0.0, 0.0)))


def torchfm_ncf(folder):
    from torchfm.model.ncf import NeuralCollaborativeFiltering

    users, items = np.array([0]), np.array([1])
    _torchfm(folder, NeuralCollaborativeFiltering(FIELDS, users, items, DIM, (16, 16), 0.2))


COLUMNS = ("user", "item", "price")
INDEX = {name: i for i, name in enumerate(COLUMNS)}
CATEGORIES = [("user", USERS, DIM), ("item", ITEMS, DIM)]


def widedeep_models():
    """Return the package's models.

    It needs torchvision, whose only build of PyPI is for GPUs: its import asks for two of their operators, which no
    model here uses.
    """
    vision = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        vision.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
    from pytorch_widedeep import models

    # An operator lives as long as its library.
    models.vision = vision
    return models


def _widedeep(folder, model, wide=False):
    names = ("wide", "deeptabular") if wide else ("deeptabular",)

    class Parts(nn.Module):
        """WideDeep, by the names of its parts."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *parts):
            return self.model(dict(zip(names, parts)))

    user, item = ids(ROWS, below=USERS), ids(ROWS)
    inputs = {"wide": np.stack([user, item + USERS], 1)} if wide else {}
    inputs["deeptabular"] = np.stack([user, item, floats(ROWS)], 1).astype(np.float32)
    # Its tables have a row 0 for padding; values here are rows.
    uses = [TableUse(name, "deeptabular", i) for i, name in enumerate(COLUMNS[:2])]
    if wide:
        uses.append(TableUse("wide", "wide", 0))
    save(folder, Parts(), inputs, uses)


def widedeep_tab_mlp(folder):
    models = widedeep_models()

    tabular = models.TabMlp(INDEX, cat_embed_input=CATEGORIES, continuous_cols=["price"], mlp_hidden_dims=[16, 8])
    _widedeep(folder, models.WideDeep(wide=models.Wide(USERS + ITEMS), deeptabular=tabular), wide=True)


def widedeep_tab_transformer(folder):
    models = widedeep_models()

    categories = [(name, size) for name, size, _ in CATEGORIES]
    tabular = models.TabTransformer(
        INDEX, cat_embed_input=categories, continuous_cols=["price"], input_dim=8, n_heads=2
    )
    _widedeep(folder, models.WideDeep(deeptabular=tabular))


def widedeep_ft_transformer(folder):
    models = widedeep_models()

    categories = [(name, size) for name, size, _ in CATEGORIES]
    tabular = models.FTTransformer(
        INDEX, cat_embed_input=categories, continuous_cols=["price"], input_dim=16, n_heads=2, n_blocks=2
    )
    _widedeep(folder, models.WideDeep(deeptabular=tabular))
