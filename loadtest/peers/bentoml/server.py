"""The benchmark's model behind BentoML: `bentoml serve` over a service of worker processes."""

import os
import sys
from pathlib import Path

import bentoml

from loadtest.peers.plain import arguments
from loadtest.peers.same_kernels import Scorer

FOLDER, THREADS, WORKERS, ACCESS_LOG = "PEER_FOLDER", "PEER_THREADS", "PEER_WORKERS", "PEER_ACCESS_LOG"


@bentoml.service(workers=int(os.environ.get(WORKERS, 1)), logging={"access": {"enabled": ACCESS_LOG in os.environ}})
class Bench:
    def __init__(self):
        self._scorer = Scorer(os.environ[FOLDER], int(os.environ[THREADS]))

    @bentoml.api(route="/predict")
    def predict(self, body: bytes, /) -> bytes:
        return self._scorer.score_bodies([body])[0]


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--access-log", action="store_true", help="a line a request, as BentoML does by default")
    options = parser.parse_args()
    given = {FOLDER: options.folder, THREADS: options.threads, WORKERS: options.workers}
    command = [str(Path(sys.executable).with_name("bentoml")), "serve", "server:Bench", "--working-dir"]
    command += [str(Path(__file__).parent), "--host", "127.0.0.1", "--port", str(options.port)]
    environ = {**os.environ, **{k: str(v) for k, v in given.items()}, "BENTOML_DO_NOT_TRACK": "True"}
    if options.access_log:
        environ[ACCESS_LOG] = "1"
    os.execve(command[0], command, environ)
