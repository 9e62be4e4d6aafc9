"""The benchmark's model behind LitServe: uvicorn processes, a queue, worker processes that batch."""

# Annotations are read from the signature as they stand: no `from __future__ import annotations` here.

from typing import Annotated

import litserve
from fastapi import Body, Response

from loadtest.peers.plain import arguments
from loadtest.peers.same_kernels import Scorer

Bytes = Annotated[bytes, Body(media_type="application/octet-stream")]


class Score(litserve.LitAPI):
    def __init__(self, folder, threads, **options):
        super().__init__(**options)
        self._folder, self._threads = folder, threads

    def setup(self, device):
        self._scorer = Scorer(self._folder, self._threads)

    def decode_request(self, request: Bytes):
        return request

    def batch(self, inputs):
        return inputs

    def predict(self, bodies):
        if isinstance(bodies, bytes):
            return self._scorer.score_bodies([bodies])[0]
        return self._scorer.score_bodies(bodies)

    def unbatch(self, output):
        return output

    def encode_response(self, output) -> Response:
        return Response(output, media_type="application/octet-stream")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--front-ends", type=int, help="uvicorn processes; LitServe's default is one a worker")
    parser.add_argument("--fast-queue", action="store_true", help="ZeroMQ instead of multiprocessing queues")
    options = parser.parse_args()
    api = Score(options.folder, options.threads, max_batch_size=options.batch, batch_timeout=options.wait_ms / 1e3)
    server = litserve.LitServer(
        api, accelerator="cpu", devices=1, workers_per_device=options.workers, fast_queue=options.fast_queue
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=options.front_ends,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
