"""Models of DeepCTR, as its examples call them; three of them are counted as a zoo's."""

from __future__ import annotations

from functools import partial

from loadtest.bench.foreign_models.builders.tf_rows import save_keras2

# DeepCTR imports Keras, which the import above has chosen.
from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat  # isort: skip
from deepctr.models import BST, DIN, MMOE, AutoInt, DeepFM, FiBiNET  # isort: skip

import numpy as np

from loadtest.bench.foreign_models.builders.rows import DIM, deepctr_columns, deepctr_values, ids
from loadtest.bench.foreign_models.built import ROWS, TableUse

PLAIN, HISTORY, TAGS = deepctr_columns(SparseFeat, DenseFeat, VarLenSparseFeat)
CITY = SparseFeat("city", 30, embedding_dim=DIM, use_hash=True, dtype="string")
HIDDEN = {"dnn_hidden_units": (32, 16)}


def build(arch, columns, last, options, folder, **tables):
    """Write a model of columns, which it takes once more as its linear part, or with what its history is of.

    tables: by input besides user and item, the table that it is looked up in.
    """
    model = arch(columns, columns if last is None else last, **options)
    values = deepctr_values(np.int32) | {"city": np.array([f"city {n}" for n in range(100)])[ids(ROWS, below=100)]}
    inputs = {tensor.name: values[tensor.name].reshape(ROWS, -1) for tensor in model.inputs}
    uses = [TableUse(table, name, 0) for name, table in ({"user": "user", "item": "item"} | tables).items()]
    save_keras2(folder, model, inputs, uses)


def multi_task(columns, _, **options):
    tasks = {"task_types": ("binary", "binary"), "task_names": ("click", "buy")}
    return MMOE(columns, expert_dnn_hidden_units=(16,), tower_dnn_hidden_units=(8,), **tasks)


MODELS = {
    "deepctr_deepfm": partial(build, DeepFM, PLAIN, None, HIDDEN),
    "deepctr_varlen": partial(build, DeepFM, [*PLAIN, TAGS], None, HIDDEN, tags="tags"),
    "deepctr_hashed": partial(build, DeepFM, [CITY, *PLAIN], None, HIDDEN),
    "deepctr_din": partial(build, DIN, [*PLAIN, HISTORY], ["item"], HIDDEN, hist_item="item"),
    "deepctr_bst": partial(build, BST, [*PLAIN, HISTORY], ["item"], HIDDEN | {"att_head_num": 2}, hist_item="item"),
    "deepctr_autoint": partial(build, AutoInt, PLAIN, None, HIDDEN),
    "deepctr_fibinet": partial(build, FiBiNET, PLAIN, None, HIDDEN),
    "deepctr_mmoe": partial(build, multi_task, PLAIN, None, {}),
}
