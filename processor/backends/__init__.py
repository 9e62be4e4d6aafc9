"""Backends that run dense graphs: one module a library, behind the seam in base; and what a batch costs on them.

Names of the seam, of opening and of costs are imported from here. The modules that are exported are halves: the other
one, in compiler/backends, shares their format.

base         the seam between the engine and a library
opening      backends by name; which executables of a version serve here, and why others do not
bounded      a lower precision, as long as its scores stay within a bound of float32's
onnxfile     which weights an ONNX file wants from outside, read before a native parser sees it
onnxruntime  dense graphs on ONNX Runtime
openvino     dense graphs on OpenVINO
xla          dense graphs on XLA, through PJRT
tensorrt     dense graphs on TensorRT
cuda         CUDA's runtime, as far as it is used directly
buffers      a session's buffers for one version, bound before a request needs them
cost         what a batch costs, measured, and the cheapest buckets for its rows
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
    weights_hash,
)
from freshet_serving.processor.backends.buffers import Buffers, IoShape
from freshet_serving.processor.backends.cost import FREE, WORTH, CostTable, smoothed
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
    "FREE",
    "WORTH",
    "Artefact",
    "Backend",
    "Buffers",
    "CostTable",
    "Executable",
    "IoShape",
    "Matrix",
    "OpenedPrograms",
    "Package",
    "Program",
    "Weights",
    "aligned",
    "bounded",
    "builtin",
    "check_buffers",
    "cuda",
    "executable_files",
    "onnxruntime",
    "open_programs",
    "openvino",
    "pack",
    "sha256",
    "smoothed",
    "tensorrt",
    "weights_hash",
    "xla",
]
