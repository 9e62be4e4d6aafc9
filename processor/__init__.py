"""Freshet's engine, ground floor: package format, tables and kernels, generations, batcher, sessions, backends.

    from processor import Processor, ProcessorConfig, PredictRequest

Names load on first use, so that processor.package stays importable with numpy and safetensors alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from processor.engine import PredictReply, PredictRequest, Processor, ProcessorConfig

__all__ = ["PredictReply", "PredictRequest", "Processor", "ProcessorConfig"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'processor' has no attribute {name!r}")
    from processor import engine

    return getattr(engine, name)
