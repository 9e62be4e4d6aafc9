"""Convert ONNX files, as PyTorch's exporters write them, to SavedModels.

onnx_reader   reads and checks a file as plain data
branches      resolves branches on constants
operators     names the operators that have a translation
bags          recognises nn.EmbeddingBag as both exporters write it
linear_weights  finds weights that an exporter has transposed, and their names
calls         one operator call, as its translator sees it
arithmetic    translates element-wise operators and reductions
rearranging   translates operators that move values
networks      translates operators of network layers, and EmbeddingBag
translation   a graph as a TensorFlow function, weights under their own names
reference_check  compares the translation with ONNX Runtime
saved_model   writes all of it as a SavedModel
"""

__all__ = ["bags", "branches", "linear_weights", "onnx_reader", "operators", "saved_model"]
