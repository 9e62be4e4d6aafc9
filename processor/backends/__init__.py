"""Run dense graphs with libraries: one module per library, behind the interface in base.

Names of the interface, of the registry and of capsules are imported from here. The modules that are exported are one
half each: the other half, in compiler/backends, shares their format.

base         the interface between the engine and a library
registry     backends by name
capsule      the file format for machine code
onnxfile     lists the external weights of an ONNX file before a native parser sees it
onnxruntime  dense graphs on ONNX Runtime
openvino     dense graphs on OpenVINO
xla          dense graphs on XLA, through PJRT
tensorrt     dense graphs on TensorRT
cuda         the calls of CUDA's runtime that are used directly

Names load on first use (processor.lazy_names).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.lazy_names import lazy_names

if TYPE_CHECKING:
    from freshet_serving.processor.backends import cuda, onnxfile, onnxruntime, openvino, tensorrt, xla
    from freshet_serving.processor.backends.base import (
        Artefact,
        Backend,
        Dims,
        EndableRun,
        EndedRun,
        Executable,
        IoSpec,
        Matrix,
        PartialRun,
        Program,
        Weights,
        aligned,
        check_buffers,
        failed,
        missing,
        refused,
        shapes_text,
        sized,
        weights_hash,
    )
    from freshet_serving.processor.backends.capsule import pack, unpack
    from freshet_serving.processor.backends.registry import allocator, builtin, load_backend
    from freshet_serving.processor.package import MATRIX
else:
    __getattr__ = lazy_names(__name__, __file__)
