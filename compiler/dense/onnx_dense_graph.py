"""A dense graph that ONNX Runtime computes as it is, with the interface of DenseGraph and without TensorFlow.

The graph is one ONNX model of exactly the form that the backend onnxruntime loads (compiler/backends/onnxruntime.py):
"x" [rows, width] in, float32 outputs [rows, columns] out, weights by name and shape only. So it is its own executable:
compiling copies it, no pass changes it, and no other backend computes it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from freshet_serving.processor.backends import MATRIX, Artefact, Dims, IoSpec, Matrix, load_backend
from freshet_serving.processor.package import Output, parse_tensors, write_tensors
from freshet_serving.processor.running.given_rows import outputs_of

BACKEND = "onnxruntime"
MODEL_FILE, EXAMPLES_FILE = "model.onnx", "examples.safetensors"
MAX_RUN_ROWS = 256

Tensors = Mapping[str, Matrix]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxDenseGraph:
    """Matrix of features and weights -> outputs float32 [rows, columns].

    Outputs are by ascending name, weights in the model's order, examples realistic.
    """

    model: bytes
    width: int
    outputs: list[Output]
    weights: dict[str, Matrix]
    examples: Tensors

    @property
    def inputs(self) -> dict[str, Dims]:
        return {MATRIX: (None, self.width)}

    @property
    def spec(self) -> IoSpec:
        return IoSpec.of_matrix(self.width, {o.name: o.columns for o in self.outputs})

    @classmethod
    def stored(cls, path: Path) -> bool:
        return (path / MODEL_FILE).is_file()

    @classmethod
    def load(cls, path: Path, weights: Tensors, outputs: Sequence[Output]) -> OnnxDenseGraph:
        examples = parse_tensors(np.fromfile(path / EXAMPLES_FILE, np.uint8), "graph").arrays
        width = examples[MATRIX].shape[1]
        return cls((path / MODEL_FILE).read_bytes(), width, list(outputs), dict(weights), examples)

    def save(self, path: Path) -> None:
        path.mkdir(parents=True)
        (path / MODEL_FILE).write_bytes(self.model)
        file = io.BytesIO()
        write_tensors(file, {name: np.ascontiguousarray(rows) for name, rows in self.examples.items()}, {})
        (path / EXAMPLES_FILE).write_bytes(file.getvalue())

    def sample(self, rows: int) -> dict[str, Matrix]:
        return self.resized(self.examples, rows)

    def resized(self, inputs: Tensors, rows: int) -> dict[str, Matrix]:
        x = np.asarray(inputs[MATRIX], np.float32)
        return {MATRIX: np.ascontiguousarray(x[np.arange(rows) % len(x)])}

    def rows(self, inputs: Tensors) -> int:
        return len(inputs[MATRIX])

    def run(self, inputs: Tensors, weights: Tensors | None = None) -> dict[str, Matrix]:
        chosen = self.weights if weights is None else weights
        bucket = min(len(inputs[MATRIX]), MAX_RUN_ROWS)
        program = load_backend(BACKEND).open_program(self.spec)
        program.add(Artefact(bucket, self.model, list(self.weights)))
        return outputs_of(program.with_weights(chosen)[bucket], inputs, self.spec)
