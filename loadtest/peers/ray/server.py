"""The benchmark's model behind Ray Serve: an HTTP proxy, replicas as actors, batches within a replica."""

import os
import time

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from loadtest.peers.plain import arguments
from loadtest.peers.same_kernels import Scorer


def application(options):
    """A deployment with the given options."""

    @serve.deployment(
        num_replicas=options.workers,
        max_ongoing_requests=options.ongoing,
        ray_actor_options={"num_cpus": 1},
    )
    class Score:
        def __init__(self):
            self._scorer = Scorer(options.folder, options.threads)

        @serve.batch(max_batch_size=options.batch, batch_wait_timeout_s=options.wait_ms / 1e3)
        async def together(self, bodies):
            return self._scorer.score_bodies(bodies)

        async def __call__(self, request: Request):
            body = await request.body()
            if options.batch > 1:
                scores = await self.together(body)
            else:
                scores = self._scorer.score_bodies([body])[0]
            return Response(scores, media_type="application/octet-stream")

    return Score.bind()


def main():
    parser = arguments(__doc__)
    parser.add_argument("--ongoing", type=int, default=5, help="requests that a replica may hold")
    options = parser.parse_args()
    # The proxy needs no core of its own in Ray's books; the replicas take one each.
    ray.init(address="local", num_cpus=options.workers, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    serve.run(application(options), name="bench", route_prefix="/predict")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
