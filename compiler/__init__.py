"""The ahead-of-time compiler: a trained graph in, a package with executables out.

imports      imports any SavedModel, Keras or ONNX file as a package
building     compiles executables for every bucket, verifies and measures them; `freshet compile`
passes       optimisation passes over a dense graph
dense        the dense graph itself, and outputs that are expressions over it
backends     compiles a dense graph, one module per library
frameworks   imports TensorFlow and Keras once and quietly
progress     progress bars on a terminal
"""

__all__ = ["backends", "building", "dense", "frameworks", "imports", "progress"]
