"""ONNX files, as PyTorch's exporters write them: read, understood and written as SavedModels.

onnx_reader   a file as plain data, checked
branches      branches that are decided beforehand
bags          nn.EmbeddingBag, in the spellings of both exporters
calls         one operator, as its translator sees it
arithmetic    operators number by number, and reductions
rearranging   operators that put numbers elsewhere
networks      operators of layers, and EmbeddingBag
translation   a graph as a TensorFlow function, weights under their own names
reference_check  what ONNX Runtime makes of the file, to compare with
saved_model   the whole of it as a SavedModel
"""

__all__ = ["saved_model"]
