"""A server written by hand: FastAPI in front of a TensorFlow SavedModel that has the embedding tables inside.

The SavedModel is built once from the version's folder: each table a variable that is gathered from (ids are row
numbers in the benchmark's model), then the network as the trainer exported it. Nothing of Freshet runs in it.
"""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
import uvicorn
from fastapi import FastAPI, Request, Response
from safetensors.numpy import load_file

from loadtest.peers.plain import arguments, split

MODEL, THREADS = "PEER_MODEL", "PEER_THREADS"


class FullModel(tf.Module):
    """The whole model: ids and floats in, scores out."""

    def __init__(self, version):
        super().__init__()
        manifest = json.loads((version / "model.json").read_bytes())
        self.tables = []
        for feature in (f for f in manifest["features"] if f["table"]):
            tensors = load_file(version / "tables" / f"{feature['table']}.safetensors")
            rows = np.empty_like(tensors["rows"])
            rows[tensors["keys"]] = tensors["rows"]
            self.tables.append(tf.Variable(rows, trainable=False))
        # The exported network takes its weights as arguments: here they become variables beside it.
        self.network = tf.saved_model.load(str(version / "graph"))
        weights = load_file(version / "dense.safetensors")
        self.weights = {name: tf.Variable(value, trainable=False) for name, value in weights.items()}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 26], tf.int64, name="ids"),
            tf.TensorSpec([None, 13], tf.float32, name="floats"),
        ]
    )
    def __call__(self, ids, floats):
        pooled = [tf.gather(table, ids[:, i]) for i, table in enumerate(self.tables)]
        return self.network.dense(tf.concat([*pooled, floats], axis=1), {n: w.value() for n, w in self.weights.items()})


def build(version, saved):
    tf.saved_model.save(FullModel(version), str(saved))


def application():
    """The app of one worker process."""
    threads = int(os.environ[THREADS])
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    model = tf.saved_model.load(os.environ[MODEL])
    app = FastAPI()

    @app.post("/predict")
    async def predict(request: Request):
        ids, floats = split(await request.body())
        scores = model(tf.constant(ids), tf.constant(floats))["score"].numpy()
        return Response(scores.tobytes(), media_type="application/octet-stream")

    @app.get("/health")
    async def health():
        return {}

    return app


def main():
    options = arguments(__doc__).parse_args()
    saved = Path(options.folder).parents[2] / "fastapi_tf"
    if not saved.exists():
        # In a process of its own: the threads of the served model must be set before TensorFlow starts.
        process = multiprocessing.get_context("spawn").Process(target=build, args=(Path(options.folder), saved))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit("the SavedModel could not be built")
    os.environ |= {MODEL: str(saved), THREADS: str(options.threads)}
    uvicorn.run(
        "server:application",
        factory=True,
        host="127.0.0.1",
        port=options.port,
        workers=options.workers,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
