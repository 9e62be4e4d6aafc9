"""The benchmark's model behind MLServer: FastAPI, KServe v2 as JSON, inference processes, adaptive batches."""

import asyncio

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceResponse

from loadtest.peers.plain import arguments
from loadtest.peers.same_kernels import Scorer


class Bench(MLModel):
    async def load(self):
        extra = self.settings.parameters.extra
        self._scorer = Scorer(extra["folder"], extra["threads"])
        return True

    async def predict(self, payload):
        inputs = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        scores = self._scorer.score(
            np.ascontiguousarray(inputs["ids"], np.int64), np.ascontiguousarray(inputs["floats"], np.float32)
        )
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("score", scores[:, None])])


async def main():
    options = arguments(__doc__, other_ports=True).parse_args()
    grpc_port, metrics_port = options.other_ports
    settings = Settings(
        debug=False,
        host="127.0.0.1",
        http_port=options.port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        parallel_workers=options.workers,
    )
    model = ModelSettings(
        name="bench",
        # By its name: the inference processes import it for themselves.
        implementation="server.Bench",
        parameters=ModelParameters(extra={"folder": options.folder, "threads": options.threads}),
        max_batch_size=options.batch if options.batch > 1 else 0,
        max_batch_time=options.wait_ms / 1e3,
    )
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(main())
