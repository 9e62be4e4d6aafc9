"""The benchmark's model behind PyTriton: Triton's own front end and batcher, Python functions in this process."""

import threading

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from loadtest.peers.plain import arguments
from loadtest.peers.same_kernels import Scorer

MAX_ROWS = 512


def instance(folder, threads):
    """One infer function: PyTriton calls each in a thread of its own."""
    scorer, lock = Scorer(folder, threads), threading.Lock()

    @batch
    def infer(ids, floats):
        with lock:
            return {"score": scorer.score(np.ascontiguousarray(ids), np.ascontiguousarray(floats))[:, None]}

    return infer


def main():
    options = arguments(__doc__, other_ports=True).parse_args()
    grpc_port, metrics_port = options.other_ports
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=options.port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        http_thread_count=2,
    )
    batcher = DynamicBatcher(max_queue_delay_microseconds=int(options.wait_ms * 1e3))
    with Triton(config=config) as triton:
        triton.bind(
            model_name="bench",
            infer_func=[instance(options.folder, options.threads) for _ in range(options.workers)],
            inputs=[
                Tensor(name="ids", dtype=np.int64, shape=(26,)),
                Tensor(name="floats", dtype=np.float32, shape=(13,)),
            ],
            outputs=[Tensor(name="score", dtype=np.float32, shape=(1,))],
            config=ModelConfig(max_batch_size=MAX_ROWS, batching=True, batcher=batcher),
            strict=False,
        )
        triton.serve()


if __name__ == "__main__":
    main()
