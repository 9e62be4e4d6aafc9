"""Training of the dense network.

dense_step       forward and backward pass of a batch in parts, then an optimizer step
batch_part       one part of a batch, with the buffers that an executable reads
next_item_step   the same for histories, whose next item is learned
next_item_functions  the functions that XLA compiles for it
dense_functions  the functions that XLA compiles
dense_state      the state that passes from step to step
dense_optimizer  Adam with weight decay and clipping
losses           a loss for each row, and each row's weight in the mean
"""

__all__ = ["batch_part", "dense_state", "dense_step", "losses", "next_item_step"]
