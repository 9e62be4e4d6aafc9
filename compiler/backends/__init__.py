"""Backends, the half that compiles dense graphs: one module a library; processor.backends runs what they write.

base                the seam between the compiler and a library
onnxruntime         TensorFlow to ONNX, weights by name and shape only
int8                an ONNX model with matrix products in int8
int8_choice         which products, and by what ranges
openvino            ONNX to the library's own compiled model
xla                 StableHLO to a PJRT executable
xla_function        a TensorFlow function as an executable in this process, whose state stays where it is
tensorrt            ONNX with the weights inside, to an engine a bucket
tensorflow          a GraphDef: the reference
tensorflow_runtime  loads and runs that GraphDef; the entry point freshet.backends
"""

__all__ = ["base", "tensorflow_runtime", "xla_function"]
