"""The second floor: a trained graph in, a package with executables out.

imports      any SavedModel, Keras or ONNX file in, a package out
recompiling  a version that lies in a repository, compiled anew
building     executables for every bucket, proven and measured
passes       what makes a dense graph cheaper
dense        the dense graph itself, and outputs that are expressions over it
backends     how a dense graph is compiled, one module a library
frameworks   TensorFlow and Keras, imported once and quietly
progress     bars on a terminal
"""

__all__ = ["backends", "building", "dense", "frameworks", "imports", "progress", "recompiling"]
