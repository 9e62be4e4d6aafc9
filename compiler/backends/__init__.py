"""The compiling half of the backends: one module per library; processor.backends runs what they write.

base                the interface between the compiler and a library
onnxruntime         TensorFlow to ONNX, with weights by name and shape only
layer_norms         fuses layer normalisations of an ONNX model
native_onnx         a graph that ONNX Runtime computes as it is
int8                rewrites an ONNX model to int8 matrix products
int8_choice         chooses these products and measures their ranges
openvino            ONNX to the library's own compiled model
xla                 StableHLO to a PJRT executable
gpu_targets         kinds of GPU that XLA compiles for on a machine without one
xla_function        a TensorFlow function as an executable in this process, with state that stays in place
executable_store    what XLA has compiled for steps of training, in the user's cache
tensorrt            ONNX with the weights inside, to one engine per bucket
tensorflow          a GraphDef: the reference
tensorflow_runtime  loads and runs that GraphDef; the entry point freshet.backends
"""

__all__ = ["base", "executable_store", "gpu_targets", "native_onnx", "tensorflow_runtime", "xla", "xla_function"]
