"""Share among the builders with PyTorch: weights that differ, and both exporters to ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from loadtest.bench.foreign_models.built import ROWS, write_built

OPSET, NEAR_ZERO = 17, 1e-2
LONGEST = 64
"""Places of a history of free length, by dynamo's exporter."""


def spread(model):
    """Draw rows of tables anew, and weights near 0: many libraries begin with rows and scores that hardly differ."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.std() < NEAR_ZERO:
                weight.normal_(0, 0.3, generator=generator)
        for module in model.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                module.weight.normal_(0, 0.4, generator=generator)
                if module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0
    return model.eval()


def save(folder, model, inputs, uses=(), outputs=("score",), free=(), dynamo=False):
    """Write the model, and what PyTorch makes of the rows. free: inputs whose second dimension has no fixed size."""
    path = str(Path(folder) / "model.onnx")
    spread(model)
    tensors = tuple(torch.from_numpy(np.asarray(array)) for array in inputs.values())
    with torch.no_grad():
        found = model(*tensors)
    found = found if isinstance(found, (tuple, list)) else (found,)
    names = {"input_names": list(inputs), "output_names": list(outputs), "opset_version": OPSET}
    # Few rows and places: exporters may take a dimension of the example for what it is to be.
    example = tuple(tensor[:7, :9] if name in free else tensor[:7] for name, tensor in zip(inputs, tensors))
    if dynamo:
        batch = torch.export.Dim("batch", min=2, max=4096)
        length = torch.export.Dim("length", min=2, max=LONGEST)
        shapes = tuple({0: batch} | ({1: length} if name in free else {}) for name in inputs)
        names["opset_version"] = 18
        torch.onnx.export(model, example, path, dynamo=True, dynamic_shapes=shapes, external_data=False, **names)
    else:
        axes = {name: {0: "batch"} | ({1: f"{name}_length"} if name in free else {}) for name in inputs}
        axes |= {name: {0: "batch"} for name in outputs}
        torch.onnx.export(model, example, path, dynamo=False, dynamic_axes=axes, **names)
    expected = {name: tensor.numpy() for name, tensor in zip(outputs, found)}
    assert all(len(array) == ROWS for array in expected.values())
    write_built(Path(folder), inputs, expected, uses)
