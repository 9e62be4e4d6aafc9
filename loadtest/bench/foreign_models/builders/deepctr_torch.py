"""Models of deepctr-torch, which take one matrix of floats with all columns."""

from __future__ import annotations

from functools import partial

import numpy as np
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr_torch.models import DCN, DIN, MMOE, DeepFM, xDeepFM

from loadtest.bench.foreign_models.builders.rows import deepctr_columns, deepctr_values
from loadtest.bench.foreign_models.builders.torch_export import save
from loadtest.bench.foreign_models.built import ROWS, TableUse

PLAIN, HISTORY, TAGS = deepctr_columns(SparseFeat, DenseFeat, VarLenSparseFeat)
HIDDEN = {"dnn_hidden_units": (32, 16)}
TASKS = {"task_types": ["binary", "binary"], "task_names": ["click", "buy"]}
EXPERTS = {"num_experts": 3, "expert_dnn_hidden_units": (16,), "tower_dnn_hidden_units": (8,)}


def build(arch, given, options, folder, output="score", **tables):
    """Export a model. given: columns, and what else stands before its options; tables: by more columns, their table."""
    model, values = arch(*given, device="cpu", **options), deepctr_values()
    matrix = np.zeros((ROWS, max(last for _, last in model.feature_index.values())), np.float32)
    for name, (first, last) in model.feature_index.items():
        matrix[:, first:last] = values[name].reshape(ROWS, last - first)
    tables = {"user": "user", "item": "item"} | tables
    uses = [TableUse(table, "X", model.feature_index[name][0]) for name, table in tables.items()]
    save(folder, model, {"X": matrix}, uses, (output,))


LISTED, ATTENDED = [*PLAIN, TAGS], HIDDEN | {"att_weight_normalization": True}
MODELS = {
    "deepctr_torch_deepfm": partial(build, DeepFM, (PLAIN, PLAIN), HIDDEN),
    "deepctr_torch_varlen": partial(build, DeepFM, (LISTED, LISTED), HIDDEN, tags="tags"),
    "deepctr_torch_dcn": partial(build, DCN, (PLAIN, PLAIN), HIDDEN | {"cross_num": 3}),
    "deepctr_torch_xdeepfm": partial(build, xDeepFM, (PLAIN, PLAIN), HIDDEN | {"cin_layer_size": (8, 8)}),
    "deepctr_torch_din": partial(build, DIN, ([*PLAIN, HISTORY], ["item"]), ATTENDED, hist_item="item"),
    "deepctr_torch_mmoe": partial(build, MMOE, (PLAIN,), EXPERTS | TASKS, output="scores"),
}
