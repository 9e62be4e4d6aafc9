"""Models of deepctr-torch, which take one matrix of floats with all columns."""

from __future__ import annotations

import numpy as np
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr_torch.models import DCN, DIN, MMOE, DeepFM, xDeepFM

from loadtest.bench.foreign_models.builders.torch_export import DIM, ITEMS, USERS, floats, ids, padded, save
from loadtest.bench.foreign_models.built import ROWS, TableUse

STEPS = 6
PLAIN = [SparseFeat("user", USERS, embedding_dim=DIM), SparseFeat("item", ITEMS, embedding_dim=DIM), DenseFeat("price")]
HISTORY = VarLenSparseFeat(
    SparseFeat("hist_item", ITEMS, embedding_dim=DIM, embedding_name="item"), maxlen=STEPS, length_name="seq_length"
)
TAGS = VarLenSparseFeat(SparseFeat("tags", ITEMS, embedding_dim=DIM), maxlen=STEPS, combiner="mean")
HIDDEN = {"dnn_hidden_units": (32, 16), "device": "cpu"}


def build(folder, model, columns, tables, outputs=("score",)):
    """Export a model. tables: by feature, the table it is looked up in."""
    history = padded(ROWS, STEPS)
    values = {
        "user": ids(ROWS, below=USERS),
        "item": ids(ROWS),
        "price": floats(ROWS),
        "hist_item": history,
        "tags": padded(ROWS, STEPS),
        "seq_length": (history != 0).sum(1),
    }
    matrix = np.zeros((ROWS, max(last for _, last in model.feature_index.values())), np.float32)
    for name, (first, last) in model.feature_index.items():
        matrix[:, first:last] = values[name].reshape(ROWS, last - first)
    uses = [TableUse(table, "X", model.feature_index[name][0]) for name, table in tables.items()]
    save(folder, model, {"X": matrix}, uses, outputs)


def deepctr_torch_deepfm(folder):
    build(folder, DeepFM(PLAIN, PLAIN, **HIDDEN), PLAIN, {"user": "user", "item": "item"})


def deepctr_torch_varlen(folder):
    columns = [*PLAIN, TAGS]
    build(folder, DeepFM(columns, columns, **HIDDEN), columns, {"user": "user", "item": "item", "tags": "tags"})


def deepctr_torch_dcn(folder):
    build(folder, DCN(PLAIN, PLAIN, cross_num=3, **HIDDEN), PLAIN, {"user": "user", "item": "item"})


def deepctr_torch_xdeepfm(folder):
    build(folder, xDeepFM(PLAIN, PLAIN, cin_layer_size=(8, 8), **HIDDEN), PLAIN, {"user": "user", "item": "item"})


def deepctr_torch_din(folder):
    columns = [*PLAIN, HISTORY]
    model = DIN(columns, ["item"], att_weight_normalization=True, **HIDDEN)
    build(folder, model, columns, {"user": "user", "item": "item", "hist_item": "item"})


def deepctr_torch_mmoe(folder):
    tasks = {"task_types": ["binary", "binary"], "task_names": ["click", "buy"]}
    model = MMOE(
        PLAIN, num_experts=3, expert_dnn_hidden_units=(16,), tower_dnn_hidden_units=(8,), device="cpu", **tasks
    )
    build(folder, model, PLAIN, {"user": "user", "item": "item"}, ("scores",))
