"""The application of the data ports over a FakeProcessor, and requests for it."""

import json

from freshet_serving.serving.front.exchange import ServingContext
from freshet_serving.serving.front_options import FrontendOptions
from freshet_serving.serving.http.app import DataApp
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics
from tests.serving.fakes import FakeProcessor

ROW = {"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}]}
BODY = json.dumps(ROW).encode()
INFER = {
    "inputs": [
        {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]},
        {"name": "floats", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1]},
    ]
}


def serve(processor=None, access=None, tracer=None, **options):
    lifecycle = Lifecycle()
    processor = processor or FakeProcessor()
    lifecycle.open(processor)
    metrics = Metrics(lifecycle)
    serving_context = ServingContext(lifecycle, metrics, FrontendOptions(version="9", **options), tracer)
    app = DataApp(serving_context, access=access)
    return app, processor, lifecycle, metrics
