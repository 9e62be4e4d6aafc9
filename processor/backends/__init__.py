"""Backends that run dense graphs: one module a library, behind the seam in base; and what a batch costs on them.

base         the seam between the engine and a library
registry     backends by name, each imported when it is first asked for
opening      which executables of a version serve here, and why others do not
bounded      a lower precision, as long as its scores stay within a bound of float32's
artefact_file  the file that machine code travels in
onnxfile     which weights an ONNX file wants from outside, read before a native parser sees it
onnxruntime  dense graphs on ONNX Runtime
openvino     dense graphs on OpenVINO
xla          dense graphs on XLA, through PJRT
tensorrt     dense graphs on TensorRT
cuda         CUDA's runtime, as far as it is used directly
buffers      a session's buffers for one version, bound before a request needs them
cost         what a batch costs, measured, and the cheapest buckets for its rows
"""

__all__ = [
    "artefact_file",
    "base",
    "bounded",
    "buffers",
    "cost",
    "cuda",
    "onnxruntime",
    "opening",
    "openvino",
    "registry",
    "tensorrt",
    "xla",
]
