"""An engine in a process of its own, which loads nothing to publish with: `run(root)` is driven by standard input.

The first line is the inputs of a request as JSON. Each line after it makes the engine poll and answer, by one line of
JSON: the generation and the scores.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig


def run(root: str, model: str) -> None:
    """Answer until standard input ends.

    Args:
        root: The repository.
        model: Name of the model.
    """
    processor = Processor.initialize(ProcessorConfig(root, delta_guard="off"))
    try:
        raw = json.loads(sys.stdin.readline())
        ends = np.cumsum([0] + [len(row) for row in raw["tags"]])
        inputs = {
            "user": np.array(raw["user"], np.int64),
            "tags": Ragged(Strings.of([tag for row in raw["tags"] for tag in row]), ends),
            "floats": np.array(raw["floats"], np.float32),
        }
        for _ in sys.stdin:
            processor.poll()
            reply = processor.process(PredictRequest(model, inputs))
            print(json.dumps([str(reply.generation), reply.outputs["score"][:, 0].tolist()]), flush=True)
    finally:
        processor.close()
