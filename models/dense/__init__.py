"""The dense network in training: what moves its weights.

dense_step       a batch forward and backward, in parts, then a step of the optimizer
batch_part       a part of a batch, as an executable takes it
dense_functions  what XLA compiles
dense_state      what goes from step to step
dense_optimizer  Adam: weight decay, clipping
losses           a loss a row, and the share of each row in the mean
"""

__all__ = ["batch_part", "dense_state", "dense_step", "losses"]
