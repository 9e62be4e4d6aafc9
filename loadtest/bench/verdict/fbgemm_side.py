"""FBGEMM's CPU kernel on one thread: sums of rows by number, or by an id that its hash finds.

Arguments: row type, by (number | hash). Runs in an environment of its own, which has torch and fbgemm-gpu-cpu.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

from loadtest.bench.training.turns import serve
from loadtest.bench.verdict.lookup_shape import DIM, ROWS, TABLES, lists

TYPES = {"float32": SparseType.FP32, "float16": SparseType.FP16, "int8": SparseType.INT8}


def main() -> None:
    kind, by = sys.argv[1:3]
    torch.set_num_threads(1)
    remapping = None if by == "number" else [torch.arange(ROWS, dtype=torch.int32) for _ in range(TABLES)]
    tables = IntNBitTableBatchedEmbeddingBagsCodegen(
        [(f"t{t}", ROWS, DIM, TYPES[kind], EmbeddingLocation.HOST) for t in range(TABLES)],
        index_remapping=remapping,
        pooling_mode=PoolingMode.SUM,
        device="cpu",
        output_dtype=SparseType.FP32,
        use_array_for_index_remapping=False,
    )
    tables.fill_random_weights()
    ids, splits = lists()
    starts = np.concatenate([[0], np.cumsum([len(part) for part in ids])])
    ends = [start + part[1:] for start, part in zip(starts, splits)]
    indices = torch.tensor(np.concatenate(ids), dtype=torch.int32)
    offsets = torch.tensor(np.concatenate([[0], *ends]), dtype=torch.int32)

    def look_up(times: int) -> float:
        for _ in range(times):
            pooled = tables(indices, offsets)
        return float(pooled[0, 0])

    serve(look_up)


if __name__ == "__main__":
    main()
