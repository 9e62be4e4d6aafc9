"""The third floor, the training component: events in, versions and deltas out.

config        `freshet train --config`: what to read, what to learn, what to publish
publishing    from any trainer: what it changed becomes deltas of a version that is served already
analysis      what lies in embedding tables, and what sparing it would save and cost
pipeline      how the stages of a step share threads and cores
parallel      several processes that learn together
joining       recordings and outcomes, as rows to learn
training      a stream of labelled rows in; versions, deltas and checkpoints out
evaluation    scored rows in, metrics out
runs          what is kept of a training run for people: its configuration, metrics and report
dense         what moves a network's weights
streams       streams that grow while they are read, as rows with numbers
zoo           networks over the dense input
embedding     EmbeddingVariables and the optimizers of their rows
data          readers that turn stored or made-up events into batches of columns
bench         the benchmark's model and its deltas, written without training
"""

__all__ = [
    "analysis",
    "bench",
    "config",
    "data",
    "evaluation",
    "joining",
    "parallel",
    "pipeline",
    "publishing",
    "runs",
    "streams",
    "training",
    "zoo",
]
