"""A tiny DeepFM package made by hand, without any code of ours, and its scores in plain Python."""

import json
import math

import numpy as np
from safetensors.numpy import save_file

DIM, HIDDEN = 2, 3
IDS = np.array([10, 11, 12, 13], np.int64)
DEFAULT = [0.5, -0.5]


def weights(seed=0):
    random = np.random.default_rng(seed)
    shapes = {
        "linear/kernel": (6, 1),
        "linear/bias": (1,),
        "mlp_0/kernel": (6, HIDDEN),
        "mlp_0/bias": (HIDDEN,),
        "mlp_1/kernel": (HIDDEN, HIDDEN),
        "mlp_1/bias": (HIDDEN,),
        "mlp_out/kernel": (HIDDEN, 1),
    }
    return {name: (0.4 * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def table_rows(seed):
    return (0.5 * np.random.default_rng(seed).standard_normal((len(IDS), DIM))).astype(np.float32)


def write_package(root, arch="deepfm"):
    """Model "tiny": ids [n, 2] into tables a and b, floats [n, 2] of which the second is log1p and scaled."""
    folder = root / "tiny" / "3"
    (folder / "tables").mkdir(parents=True)
    (folder / "deltas").mkdir()
    embedded = [
        {"name": t, "kind": "id", "input": "ids", "column": i, "table": t, "offset": i * DIM, "width": DIM}
        for i, t in enumerate("ab")
    ]
    floats = [
        {"name": f"f{j}", "kind": "float", "input": "floats", "column": j, "table": "", "offset": 4 + j, "width": 1}
        for j in range(2)
    ]
    transforms = [{"log1p": False, "mean": 0.0, "scale": 1.0}, {"log1p": True, "mean": 1.0, "scale": 2.0}]
    document = {
        "model": "tiny",
        "version": 3,
        "arch": arch,
        "width": 6,
        "inputs": [
            {"name": "ids", "dtype": "int64", "columns": 2, "ragged": False},
            {"name": "floats", "dtype": "float32", "columns": 2, "ragged": False},
        ],
        "features": embedded + [f | t for f, t in zip(floats, transforms)],
        "tables": [{"name": t, "dim": DIM, "rows": 4, "default": DEFAULT if t == "b" else []} for t in "ab"],
        "outputs": [{"name": "score", "columns": 1}],
    }
    (folder / "model.json").write_text(json.dumps(document))
    save_file(weights(), folder / "dense.safetensors")
    for seed, name in enumerate("ab"):
        save_file({"keys": IDS, "rows": table_rows(seed)}, folder / "tables" / f"{name}.safetensors")
    return folder


def write_delta(path, step, keys=(), rows=(), removed=(), table="a", dense=None, parent=None):
    """One delta for version 3, changing one table."""
    tensors = {
        f"tables/{table}/keys": np.asarray(keys, np.int64),
        f"tables/{table}/rows": np.asarray(rows, np.float32).reshape(-1, DIM),
        f"tables/{table}/removed": np.asarray(removed, np.int64),
    }
    tensors |= {f"dense/{name}": array for name, array in (dense or {}).items()}
    metadata = {"version": "3", "step": str(step), "parent_step": str(step - 1 if parent is None else parent)}
    save_file(tensors, path, metadata)
    return path


def score(a, b, f0, f1, w):
    """One row's score, number by number. a, b: embeddings; f0, f1: floats as the request carries them."""
    scaled = (math.copysign(math.log1p(abs(f1)), f1) - 1.0) * 2.0
    x = [*map(float, a), *map(float, b), f0, 0.0 if math.isnan(f1) else scaled]
    logit = float(w["linear/bias"][0]) + sum(v * float(w["linear/kernel"][i, 0]) for i, v in enumerate(x))
    hidden = x
    for layer in range(2):
        kernel, bias = w[f"mlp_{layer}/kernel"], w[f"mlp_{layer}/bias"]
        hidden = [
            max(0.0, float(bias[j]) + sum(v * float(kernel[i, j]) for i, v in enumerate(hidden))) for j in range(HIDDEN)
        ]
    logit += sum(v * float(w["mlp_out/kernel"][i, 0]) for i, v in enumerate(hidden))
    logit += sum(float(p) * float(q) for p, q in zip(a, b))
    return 1.0 / (1.0 + math.exp(-logit))
