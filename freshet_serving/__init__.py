"""Freshet's public face: all that a program of yours imports.

    from freshet_serving import Client, PredictRequest, Processor, ProcessorConfig, Publisher

Names load on first use: who asks a server or publishes never imports the engine, who runs the engine never imports a
client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from freshet_serving.strangers import taken

if TYPE_CHECKING:
    from models.data.dataset import Dataset as Dataset
    from models.publishing.publisher import Publisher as Publisher
    from processor.columns import Ragged as Ragged
    from processor.columns import Strings as Strings
    from processor.engine import PredictReply as PredictReply
    from processor.engine import PredictRequest as PredictRequest
    from processor.engine import Processor as Processor
    from processor.engine import ProcessorConfig as ProcessorConfig
    from processor.errors import BadInput as BadInput
    from processor.errors import Conflict as Conflict
    from processor.errors import Corrupt as Corrupt
    from processor.errors import Expired as Expired
    from processor.errors import FreshetError as FreshetError
    from processor.errors import NotFound as NotFound
    from processor.errors import NotReady as NotReady
    from processor.errors import Overloaded as Overloaded
    from processor.errors import StandsOnUndone as StandsOnUndone
    from processor.errors import TooLarge as TooLarge
    from serving.client.client import AsyncClient as AsyncClient
    from serving.client.client import Client as Client
    from serving.client.prediction import Prediction as Prediction
    from serving.client.retry import Lost as Lost
    from serving.client.retry import Retry as Retry

_MODULES = {
    "models.data.dataset": ("Dataset",),
    "models.publishing.publisher": ("Publisher",),
    "processor.columns": ("Ragged", "Strings"),
    "processor.engine": ("PredictReply", "PredictRequest", "Processor", "ProcessorConfig"),
    "processor.errors": (
        "BadInput",
        "Conflict",
        "Corrupt",
        "Expired",
        "FreshetError",
        "NotFound",
        "NotReady",
        "Overloaded",
        "StandsOnUndone",
        "TooLarge",
    ),
    "serving.client.client": ("AsyncClient", "Client"),
    "serving.client.prediction": ("Prediction",),
    "serving.client.retry": ("Lost", "Retry"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
# What a type checker reads is the imports above; a test compares the two.
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'freshet_serving' has no attribute {name!r}")
    module = _MODULE_OF[name]
    if stranger := taken("processor", module.partition(".")[0]):
        raise ImportError(stranger)
    try:
        value = globals()[name] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ImportError(f"{name} is not in freshet-client: pip install freshet-serving") from None
    return value
