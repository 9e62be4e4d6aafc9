"""Training: a stream of labelled rows in; versions, deltas and checkpoints out."""
