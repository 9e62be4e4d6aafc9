"""Import plain SavedModels, Keras and ONNX files that are dropped into a repository, in the background.

auto_import     finds and imports plain SavedModels, Keras and ONNX files
import_process  one running import, in a process of its own, with limits
triton_config   checks a config.pbtxt, and reports the settings that are ignored
"""

from __future__ import annotations

from typing import Any

from freshet_serving.serving.ports import ServerExtension

__all__: list[str] = []


def _importer(config: Any, host: Any) -> Any:
    from freshet_serving.serving.extensions.auto_import.auto_import import AutoImporter
    from freshet_serving.serving.extensions.auto_import.import_process import ImportLimits

    folder = str(host.repository.root)
    return AutoImporter(folder, config.models, host, ImportLimits.of(config), signed=config.signed)


REQUIRES = ()
EXTENSION = ServerExtension(importer=_importer)
