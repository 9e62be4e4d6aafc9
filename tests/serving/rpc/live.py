"""The gRPC port over a FakeProcessor, called by a client of the same process with the private messages."""

import asyncio
import threading

import grpc
import numpy as np
import pytest

from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.front.exchange import ServingContext
from freshet_serving.serving.front.model_control import no_model_control
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.port import reserve
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.rpc.rpc_port import RpcPort
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.codecs import predict_requests
from tests.serving.codecs.predict_requests import DT_FLOAT, DT_INT64
from tests.serving.fakes import FakeProcessor

WAIT_S = 30


class Live:
    """A port on an event loop in a thread of its own."""

    def __init__(
        self,
        processor=None,
        *,
        opened=True,
        access=None,
        tracer=None,
        guard=None,
        regions=None,
        tls=None,
        host="127.0.0.1",
        **options,
    ):
        self.processor, self.lifecycle = processor or FakeProcessor(), Lifecycle()
        if opened:
            self.lifecycle.open(self.processor)
        self.metrics = Metrics(self.lifecycle)
        self.reserved, self.address = reserve(host, 0)
        front = FrontendOptions(**{"max_body_bytes": 1 << 20, "version": "9", **options})
        serving_context = ServingContext(self.lifecycle, self.metrics, front, tracer)
        self.dispatcher = serving_context.dispatcher
        self.port = RpcPort(
            serving_context,
            address=self.address,
            control=no_model_control,
            regions=regions,
            access=access,
            guard=guard,
            tls=tls,
        )
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self):
        self.thread.start()
        self.run(self.port.start())
        self.channel = grpc.insecure_channel(self.address)
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.run(self.port.stop(hurry=True))
        self.dispatcher.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()
        self.reserved.close()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def unary(self, method, reply):
        return self.channel.unary_unary(method, lambda m: m.SerializeToString(), message(reply).FromString)

    @property
    def infer(self):
        return self.unary("/inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse")

    @property
    def stream(self):
        return self.channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            lambda m: m.SerializeToString(),
            message("inference.ModelStreamInferResponse").FromString,
        )


def rpc_services():
    """service -> method -> handler, of a port that serves all that there is."""
    # Here, so that the tests of a port without shared memory need nothing of it.
    from freshet_serving.serving.extensions.shared_memory.regions import SystemRegions

    lifecycle = Lifecycle()
    serving_context = ServingContext(lifecycle, Metrics(lifecycle), FrontendOptions())
    port = RpcPort(serving_context, address="", control=no_model_control, regions=SystemRegions(1 << 20))
    serving_context.dispatcher.close()
    return port.services


def request(model="ctr", rows=1, **more):
    made = message("inference.ModelInferRequest")(model_name=model, **more)
    made.inputs.add(name="ids", datatype="INT64", shape=[rows, 3])
    made.inputs.add(name="floats", datatype="FP32", shape=[rows, 2])
    ids, floats = np.ones((rows, 3), np.int64), np.full((rows, 2), 0.5, np.float32)
    made.raw_input_contents.extend([ids.tobytes(), floats.tobytes()])
    return made


def refused(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=WAIT_S, **options)
    return caught.value


def scores(reply):
    return np.frombuffer(reply.raw_output_contents[0], np.float32).tolist()


def predict_request():
    return predict_requests.predict_request(("ids", DT_INT64, [1, 3], [1] * 3), ("floats", DT_FLOAT, [1, 2], [0.5] * 2))


def tfs_predict(live):
    return live.unary("/tensorflow.serving.PredictionService/Predict", "tensorflow.serving.PredictResponse")
