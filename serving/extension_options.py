"""Refuse options of `freshet serve` that only an extension has a use for, where the extension is not there."""

from __future__ import annotations

from dataclasses import fields

from freshet_serving.processor.generation import OFF
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.serving.ports import SERVER
from freshet_serving.serving.serve_config import ServeConfig

EXTENSIONS = {
    "admin_host": "admin",
    "admin_port": "admin",
    "admin_token": "admin",
    "delta_guard": "guard",
    "import_timeout_s": "auto_import",
    "import_cpu_s": "auto_import",
    "import_memory_bytes": "auto_import",
    "record": "recorder",
}
"""Extensions by the options that they alone read. The engine refuses those that it has too: mirror, online_stores."""


def check_extensions(config: ServeConfig) -> None:
    """Check that every option which somebody has set has its extension.

    Args:
        config: The options; one that has its default is not set.

    Raises:
        BadInput: An option needs an extension that is not there.
    """
    known = SERVER.all().keys() | ENGINE.all().keys()
    for option in fields(config):
        extension = EXTENSIONS.get(option.name, "")
        is_set = bool(extension) and getattr(config, option.name) != option.default
        if is_set and extension not in known and not _used_by_core(config, option.name):
            raise missing(option.name, extension)


def _used_by_core(config: ServeConfig, name: str) -> bool:
    """Return whether the core has a use for an option too, such as a token, which changes over the data ports know.

    Args:
        config: The options.
        name: Name of the option.
    """
    if name == "delta_guard":
        return config.delta_guard == OFF
    return name == "admin_token" and (config.model_control != "none" or bool(config.api_keys))
