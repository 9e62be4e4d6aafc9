"""Run dense graphs on backends: one module per library, behind the interface in base; and predict what a batch costs.

Names of the interface, of opening and of costs are imported from here. The modules that are exported are one half each:
the other half, in compiler/backends, shares their format.

base         the interface between the engine and a library
opening      backends by name; which executables of a version serve here, and why others do not
bounded      lower precision, used as long as its scores stay within a bound of float32's
onnxfile     lists the external weights of an ONNX file before a native parser sees it
onnxruntime  dense graphs on ONNX Runtime
openvino     dense graphs on OpenVINO
xla          dense graphs on XLA, through PJRT
tensorrt     dense graphs on TensorRT
cuda         the calls of CUDA's runtime that are used directly
buffers      a session's buffers for one version, bound before a request needs them
cost         measured costs of batches, and the cheapest buckets for their rows
"""

from freshet_serving.processor.backends.base import (
    Artefact,
    Backend,
    Executable,
    Matrix,
    Program,
    Weights,
    aligned,
    check_buffers,
    missing,
    refused,
    weights_hash,
)
from freshet_serving.processor.backends.opening import (
    OpenedPrograms,
    Package,
    builtin,
    executable_files,
    open_programs,
    pack,
    sha256,
)

__all__ = [
    "Artefact",
    "Backend",
    "Executable",
    "Matrix",
    "OpenedPrograms",
    "Package",
    "Program",
    "Weights",
    "aligned",
    "bounded",
    "buffers",
    "builtin",
    "check_buffers",
    "cost",
    "cuda",
    "executable_files",
    "missing",
    "onnxruntime",
    "open_programs",
    "openvino",
    "pack",
    "refused",
    "sha256",
    "tensorrt",
    "weights_hash",
    "xla",
]
