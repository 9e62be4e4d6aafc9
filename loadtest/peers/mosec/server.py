"""The benchmark's model behind mosec: a Rust front end, worker processes over sockets, dynamic batches."""

import os
import sys

from mosec import Server, Worker

from loadtest.peers.plain import arguments
from loadtest.peers.same_kernels import Scorer

FOLDER, THREADS, BATCH = "PEER_FOLDER", "PEER_THREADS", "PEER_BATCH"


class Score(Worker):
    """Bytes in, bytes out: the serialisation that mosec's documentation advises for tensors is one's own."""

    def __init__(self):
        super().__init__()
        self.scorer = Scorer(os.environ[FOLDER], int(os.environ[THREADS]))
        self.resp_mime_type = "application/octet-stream"

    def deserialize(self, data):
        return data

    def serialize(self, data):
        return data

    def forward(self, data):
        # With batches of 1 mosec hands over the request itself, else a list of them.
        if int(os.environ[BATCH]) == 1:
            return self.scorer.score_bodies([data])[0]
        return self.scorer.score_bodies(data)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    # Workers are started anew, not forked: the environment is what reaches them. mosec reads its own options from argv.
    os.environ |= {FOLDER: options.folder, THREADS: str(options.threads), BATCH: str(options.batch)}
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(options.port), "--log-level", "warning"]
    server = Server()
    server.append_worker(
        Score, num=options.workers, max_batch_size=options.batch, max_wait_time=max(1, int(options.wait_ms))
    )
    server.run()
