"""The training component: events in, versions and deltas out.

config        `freshet train --config`: what to read, what to learn, what to publish
publishing    publishes any trainer's changes as deltas of a served version
parallel      training over several processes
training      a stream of labelled rows in; versions, deltas and checkpoints out
evaluation    scored rows in, metrics out; what embedding tables contain
runs          records of a training run for people: its configuration, metrics and report
streams       streams that grow while they are read, as numbered rows; the join of recordings with outcomes
zoo           networks over the dense input
embedding     EmbeddingVariables and the optimizers of their rows
data          readers that turn stored or synthetic events into batches of columns
bench         writes the benchmark's model and deltas without training
"""

__all__ = [
    "bench",
    "config",
    "data",
    "evaluation",
    "parallel",
    "publishing",
    "runs",
    "streams",
    "training",
    "zoo",
]
