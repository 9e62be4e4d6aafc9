"""The dense graph, and user-defined outputs over it.

dense_graph  a function of the dense input and the weights, with no weight inside
onnx_dense_graph  a dense graph that ONNX Runtime computes as it is
op_allowlist  checks that such a graph is safe before TensorFlow loads it
expression   parses expressions over named numbers
fusion       outputs that are expressions over a model's heads and float features
"""

__all__ = ["dense_graph", "expression", "fusion", "onnx_dense_graph"]
