"""Models of torch-rechub, torchfm and pytorch-widedeep, unchanged, as their packages ship them."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np
import torch
from torch import nn

from loadtest.bench.foreign_models.builders.rows import DIM, ITEMS, USERS, floats, ids, padded
from loadtest.bench.foreign_models.builders.torch_export import save
from loadtest.bench.foreign_models.built import ROWS, TableUse

STEPS = 10
FIELDS = (USERS, ITEMS, 12)
OFFSETS = np.array((0, *np.cumsum(FIELDS)[:-1]))
MLP = {"dims": [32, 16], "dropout": 0.2, "activation": "relu"}


class ByName(nn.Module):
    """A model that takes a dict of tensors, as one that takes tensors."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors):
        return self.model(dict(zip(self.names, tensors)))


def rechub(name, folder):
    from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
    from torch_rechub.models import multi_task, ranking

    user, item, price = SparseFeature("user", USERS, DIM), SparseFeature("item", ITEMS, DIM), DenseFeature("price")
    history = SequenceFeature("history", ITEMS, DIM, pooling="concat", shared_with="item")
    attention, tower = {"dims": [16], "activation": "dice", "use_softmax": False}, {"dims": [8]}
    mixture = {"use_low_rank_mixture": True, "low_rank": 4, "num_experts": 2}
    sparse, every = [user, item], [user, item, price]
    model = {
        "deepfm": lambda: ranking.DeepFM(every, sparse, MLP),
        "widedeep": lambda: ranking.WideDeep([price], sparse, MLP),
        "dcn_v2": lambda: ranking.DCNv2(every, 3, MLP, **mixture),
        "din": lambda: ranking.DIN([user], [history], [item], {"dims": [32, 16]}, attention),
        "mmoe": lambda: multi_task.MMOE(every, ["classification"] * 2, 3, {"dims": [16]}, [tower, tower]),
    }[name]()
    more = {"history": padded(ROWS, STEPS)} if name == "din" else {"price": floats(ROWS)}
    inputs = {"user": ids(ROWS, below=USERS), "item": ids(ROWS)} | more
    uses = [TableUse("user", "user"), TableUse("item", "item")] + [TableUse("item", "history", 0)] * (name == "din")
    save(folder, ByName(model, list(inputs)), inputs, uses, ("scores" if name == "mmoe" else "score",))


def torchfm(module, name, arguments, folder):
    model = getattr(importlib.import_module(f"torchfm.model.{module}"), name)(FIELDS, *arguments)
    x = np.stack([ids(ROWS, below=size) for size in FIELDS], 1)
    uses = [
        TableUse(f"field {i}", "x", i, row_of_one=1 + int(offset), row_of_other=2 + int(offset))
        for i, offset in enumerate(OFFSETS)
    ]
    save(folder, model, {"x": x}, uses)


def widedeep(kind, categories, options, folder, wide=False):
    """Build a model of pytorch-widedeep.

    It needs torchvision, whose only build of PyPI is for GPUs: its import asks for two of their operators, which no
    model here uses. An operator lives as long as its library.
    """
    vision = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        vision.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
    from pytorch_widedeep import models

    columns = {"user": 0, "item": 1, "price": 2}
    tabular = getattr(models, kind)(columns, cat_embed_input=categories, continuous_cols=["price"], **options)
    parts = {"wide": models.Wide(USERS + ITEMS)} if wide else {}
    model = models.WideDeep(**parts, deeptabular=tabular)
    user, item = ids(ROWS, below=USERS), ids(ROWS)
    inputs = {"wide": np.stack([user, item + USERS], 1)} if wide else {}
    inputs["deeptabular"] = np.stack([user, item, floats(ROWS)], 1).astype(np.float32)
    # Its tables have a row 0 for padding; values here are rows.
    uses = [TableUse("user", "deeptabular", 0), TableUse("item", "deeptabular", 1)]
    save(folder, ByName(model, list(inputs)), inputs, uses + [TableUse("wide", "wide", 0)] * wide)


CATEGORIES = [("user", USERS), ("item", ITEMS)]
NCF = (np.array([0]), np.array([1]), DIM, (16, 16), 0.2)
AUTOINT = (DIM, 16, 2, 2, (16, 16), (0.0, 0.0, 0.0))
ATTENTION = {"input_dim": 16, "n_heads": 2, "n_blocks": 2}
MODELS = {
    "rechub_deepfm": partial(rechub, "deepfm"),
    "rechub_widedeep": partial(rechub, "widedeep"),
    "rechub_dcn_v2": partial(rechub, "dcn_v2"),
    "rechub_din": partial(rechub, "din"),
    "rechub_mmoe": partial(rechub, "mmoe"),
    "torchfm_deepfm": partial(torchfm, "dfm", "DeepFactorizationMachineModel", (DIM, (16, 16), 0.2)),
    "torchfm_xdeepfm": partial(torchfm, "xdfm", "ExtremeDeepFactorizationMachineModel", (DIM, (16, 16), 0.2, (8, 8))),
    "torchfm_autoint": partial(torchfm, "afi", "AutomaticFeatureInteractionModel", AUTOINT),
    "torchfm_ncf": partial(torchfm, "ncf", "NeuralCollaborativeFiltering", NCF),
    "widedeep_tab_mlp": partial(
        widedeep, "TabMlp", [(*each, DIM) for each in CATEGORIES], {"mlp_hidden_dims": [16, 8]}, wide=True
    ),
    "widedeep_tab_transformer": partial(widedeep, "TabTransformer", CATEGORIES, {"input_dim": 8, "n_heads": 2}),
    "widedeep_ft_transformer": partial(widedeep, "FTTransformer", CATEGORIES, ATTENTION),
}
