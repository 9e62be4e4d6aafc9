"""Compile StableHLO for a GPU on a machine that has none, from a description of each kind of GPU.

XLA's CUDA plug-in (jax[cuda13]) compiles for a description and needs neither a driver nor a GPU. It cannot time kernels
then, to choose between its own matrix kernels and cuBLAS's, and its own are slow for large batches: on an H200 the
benchmark's DeepFM at 4,096 rows took 0.85 ms with them, 0.09 ms with cuBLAS's and 0.09 ms tuned on the device
(docs/reference/gpu). So cuBLAS's are used throughout.

The code of a target runs on every GPU of that compute capability: an H100's ran on an H200.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from freshet_serving.processor.backends import missing, refused
from freshet_serving.processor.backends.xla import stablehlo_dialects
from freshet_serving.processor.errors import BadInput

KIB, GIB = 2**10, 2**30
UNTUNED = (("xla_gpu_enable_triton_gemm", False),)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One card of a compute capability, as the driver names it, in the numbers that XLA plans with.

    Threads, float32 units (fpus) and bytes of shared memory are of a multiprocessor; l2 and memory are bytes, bandwidth
    bytes a second.
    """

    name: str
    multiprocessors: int
    threads: int
    fpus: int
    shared: int
    l2: int
    memory: int
    bandwidth: int
    clock_ghz: float


MODELS = {
    "cuda-sm_80": GpuModel(
        "NVIDIA A100-SXM4-80GB", 108, 2048, 64, 164 * KIB, 40 * KIB**2, 80 * GIB, 2039 * 10**9, 1.41
    ),
    "cuda-sm_86": GpuModel("NVIDIA A10", 72, 1536, 128, 100 * KIB, 6 * KIB**2, 24 * GIB, 600 * 10**9, 1.695),
    "cuda-sm_89": GpuModel("NVIDIA L4", 58, 1536, 128, 100 * KIB, 48 * KIB**2, 24 * GIB, 300 * 10**9, 2.04),
    "cuda-sm_90": GpuModel(
        "NVIDIA H100 80GB HBM3", 132, 2048, 128, 228 * KIB, 50 * KIB**2, 80 * GIB, 3352 * 10**9, 1.98
    ),
    "cuda-sm_100": GpuModel("NVIDIA B200", 148, 2048, 128, 228 * KIB, 126 * KIB**2, 180 * GIB, 8000 * 10**9, 1.965),
    "cuda-sm_120": GpuModel(
        "NVIDIA RTX PRO 6000 Blackwell", 188, 1536, 128, 100 * KIB, 128 * KIB**2, 96 * GIB, 1792 * 10**9, 2.6
    ),
}
"""By target. Any card of the compute capability would do."""


def prepare(targets: Iterable[str]) -> None:
    """Get ready to compile for targets, before jax is used; raise BadInput unless code can be compiled for each."""
    for target in targets:
        if target not in MODELS:
            raise BadInput(f"target: expected one of {', '.join(MODELS)}, got {target[:64]!r}")
    # Else the plug-in refuses to load where cuDNN and the like are missing, which only a run would need.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


def compile_ahead(stablehlo: bytes, target: str, bucket: int) -> Any:
    """Compile a portable StableHLO artifact; return jaxlib's executable, whose serialize() is machine code.

    Raise BadInput if jax with CUDA is not installed, Corrupt if XLA cannot compile the artifact.
    """
    from jaxlib import _jax, xla_client

    places = _described(target)
    options = xla_client.CompileOptions()
    options.env_option_overrides = list(UNTUNED)
    try:
        return places[0].client.compile(_module(stablehlo), _jax.DeviceList(tuple(places)), options)
    except Exception as error:
        raise refused(bucket, f"XLA's compiler for {target}", error) from error


def description(target: str) -> str:
    """Return a target's description in the text format of XLA's plug-in."""
    gpu, (major, minor) = MODELS[target], divmod(int(target.rpartition("_")[2]), 10)
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * KIB}
  shared_memory_per_core: {gpu.shared}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.multiprocessors}
  fpus_per_core: {gpu.fpus}
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.memory}
  shared_memory_per_block_optin: {gpu.shared - KIB}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "{gpu.name}"
"""


def _described(target: str) -> list[Any]:
    if find_spec("jax_plugins") is None:
        raise missing("xla", "jax with CUDA", "gpu")
    try:
        from jax.experimental import topologies

        topology = topologies.get_topology_desc(
            platform="cuda", topology_name=target, target_config=description(target), topology="1x1x1"
        )
    except ImportError:
        raise missing("xla", "jax with CUDA", "gpu") from None
    except NotImplementedError:
        raise BadInput(f"target {target}: jax's CUDA plug-in is installed, but cannot be loaded") from None
    return list(topology.devices)


def _module(stablehlo: bytes) -> Any:
    from jaxlib.mlir.dialects import stablehlo as dialect

    with stablehlo_dialects() as context:
        return dialect.deserialize_portable_artifact(context, stablehlo)
