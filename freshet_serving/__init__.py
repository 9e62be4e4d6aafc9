"""Freshet's public API: all that a user's program imports.

    from freshet_serving import Client, PredictRequest, Processor, ProcessorConfig, Publisher

Plug-ins (architectures, backends, stages of imported models) find their base classes here as well.

Names load on first use: a client or a publisher never imports the engine, and running the engine never imports a
client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshet_serving.models.data.dataset import Dataset as Dataset
    from freshet_serving.models.publishing.publisher import Publisher as Publisher
    from freshet_serving.models.zoo.arch import Arch as Arch
    from freshet_serving.processor.backends import Artefact as Artefact
    from freshet_serving.processor.backends import Backend as Backend
    from freshet_serving.processor.backends import Executable as Executable
    from freshet_serving.processor.backends import Program as Program
    from freshet_serving.processor.columns import Ragged as Ragged
    from freshet_serving.processor.columns import Strings as Strings
    from freshet_serving.processor.engine import PredictReply as PredictReply
    from freshet_serving.processor.engine import PredictRequest as PredictRequest
    from freshet_serving.processor.engine import Processor as Processor
    from freshet_serving.processor.engine import ProcessorConfig as ProcessorConfig
    from freshet_serving.processor.errors import BadInput as BadInput
    from freshet_serving.processor.errors import Conflict as Conflict
    from freshet_serving.processor.errors import Corrupt as Corrupt
    from freshet_serving.processor.errors import Expired as Expired
    from freshet_serving.processor.errors import FreshetError as FreshetError
    from freshet_serving.processor.errors import NotFound as NotFound
    from freshet_serving.processor.errors import NotReady as NotReady
    from freshet_serving.processor.errors import Overloaded as Overloaded
    from freshet_serving.processor.errors import ParentRolledBack as ParentRolledBack
    from freshet_serving.processor.errors import TooLarge as TooLarge
    from freshet_serving.processor.errors import UserGone as UserGone
    from freshet_serving.processor.features.stage import Stage as Stage
    from freshet_serving.processor.features.stage import StageRuntime as StageRuntime
    from freshet_serving.serving.client.client import AsyncClient as AsyncClient
    from freshet_serving.serving.client.client import Client as Client
    from freshet_serving.serving.client.prediction import Prediction as Prediction
    from freshet_serving.serving.client.prediction import Recommendation as Recommendation
    from freshet_serving.serving.client.retry import ConnectionLost as ConnectionLost
    from freshet_serving.serving.client.retry import Retry as Retry

_MODULES = {
    "freshet_serving.models.data.dataset": ("Dataset",),
    "freshet_serving.models.publishing.publisher": ("Publisher",),
    "freshet_serving.models.zoo.arch": ("Arch",),
    "freshet_serving.processor.backends": ("Artefact", "Backend", "Executable", "Program"),
    "freshet_serving.processor.columns": ("Ragged", "Strings"),
    "freshet_serving.processor.engine": ("PredictReply", "PredictRequest", "Processor", "ProcessorConfig"),
    "freshet_serving.processor.errors": (
        "BadInput",
        "Conflict",
        "Corrupt",
        "Expired",
        "FreshetError",
        "NotFound",
        "NotReady",
        "Overloaded",
        "ParentRolledBack",
        "TooLarge",
        "UserGone",
    ),
    "freshet_serving.processor.features.stage": ("Stage", "StageRuntime"),
    "freshet_serving.serving.client.client": ("AsyncClient", "Client"),
    "freshet_serving.serving.client.prediction": ("Prediction", "Recommendation"),
    "freshet_serving.serving.client.retry": ("ConnectionLost", "Retry"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
# A type checker reads the imports above; a test compares the two.
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'freshet_serving' has no attribute {name!r}")
    module = _MODULE_OF[name]
    try:
        value = globals()[name] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ImportError(f"{name} is not in freshet-client: pip install freshet-serving") from None
    return value
