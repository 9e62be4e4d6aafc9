"""Training: a stream of labelled rows in; versions, deltas and checkpoints out.

loop         `freshet train`: a whole run
trainer      one batch: pooled embeddings, the dense step, row updates
spec         from a configuration to the manifest
publication  a trainer's state as a full version, or what changed as a delta
checkpoint   all it takes to go on exactly where a kill left it
quality      AUC and log-loss
"""

__all__ = ["loop", "publication", "quality"]
