"""The dense graph, and outputs of a user's own over it.

dense_graph  a function of the dense input and the weights, with no weight inside
op_allowlist  what such a graph may hold before TensorFlow loads it
expression   expressions over named numbers, as a user writes them
fusion       outputs that are expressions over a model's heads and float features
"""

__all__ = ["dense_graph", "expression", "fusion"]
