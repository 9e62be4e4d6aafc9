"""Models of DeepCTR, as its examples call them; three of them are counted as a zoo's."""

from __future__ import annotations

from loadtest.bench.foreign_models.builders.tf_rows import DIM, ITEMS, STEPS, USERS, floats, ids, padded, save_keras2

# DeepCTR imports Keras, which the import above has chosen.
from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat  # isort: skip
from deepctr.models import BST, DIN, MMOE, AutoInt, DeepFM, FiBiNET  # isort: skip

import numpy as np

from loadtest.bench.foreign_models.built import ROWS, TableUse

PLAIN = [SparseFeat("user", USERS, embedding_dim=DIM), SparseFeat("item", ITEMS, embedding_dim=DIM), DenseFeat("price")]
HISTORY = VarLenSparseFeat(
    SparseFeat("hist_item", ITEMS, embedding_dim=DIM, embedding_name="item"), maxlen=STEPS, length_name="seq_length"
)
TAGS = VarLenSparseFeat(SparseFeat("tags", ITEMS, embedding_dim=DIM), maxlen=STEPS, combiner="mean")
HIDDEN = {"dnn_hidden_units": (32, 16)}
TABLES = {"user": "user", "item": "item"}


def build(folder, model, tables, **more):
    """Write a model. tables: by input, the table it is looked up in; more: inputs that only some models have."""
    history = padded(ROWS, STEPS, dtype=np.int32)
    made = {
        "user": ids(ROWS, below=USERS, dtype=np.int32),
        "item": ids(ROWS, dtype=np.int32),
        "price": floats(ROWS),
        "hist_item": history,
        "tags": padded(ROWS, STEPS, dtype=np.int32),
        "seq_length": (history != 0).sum(1).astype(np.int32),
    } | more
    inputs = {tensor.name: made[tensor.name].reshape(ROWS, -1) for tensor in model.inputs}
    uses = [TableUse(table, name, 0) if isinstance(table, str) else table for name, table in tables.items()]
    save_keras2(folder, model, inputs, uses)


def deepctr_deepfm(folder):
    build(folder, DeepFM(PLAIN, PLAIN, **HIDDEN), TABLES)


def deepctr_varlen(folder):
    columns = [*PLAIN, TAGS]
    build(folder, DeepFM(columns, columns, **HIDDEN), TABLES | {"tags": "tags"})


def deepctr_hashed(folder):
    columns = [SparseFeat("city", 30, embedding_dim=DIM, use_hash=True, dtype="string"), *PLAIN]
    cities = np.array([f"city {n}" for n in range(100)])[ids(ROWS, below=100)]
    build(folder, DeepFM(columns, columns, **HIDDEN), TABLES, city=cities)


def deepctr_din(folder):
    columns = [*PLAIN, HISTORY]
    build(folder, DIN(columns, ["item"], **HIDDEN), TABLES | {"hist_item": "item"})


def deepctr_bst(folder):
    columns = [*PLAIN, HISTORY]
    build(folder, BST(columns, ["item"], att_head_num=2, **HIDDEN), TABLES | {"hist_item": "item"})


def deepctr_autoint(folder):
    build(folder, AutoInt(PLAIN, PLAIN, **HIDDEN), TABLES)


def deepctr_fibinet(folder):
    build(folder, FiBiNET(PLAIN, PLAIN, **HIDDEN), TABLES)


def deepctr_mmoe(folder):
    tasks = {"task_types": ("binary", "binary"), "task_names": ("click", "buy")}
    build(folder, MMOE(PLAIN, expert_dnn_hidden_units=(16,), tower_dnn_hidden_units=(8,), **tasks), TABLES)
