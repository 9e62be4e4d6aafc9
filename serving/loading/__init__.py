"""Bring new versions and deltas in from the repository, in the background.

watcher      one thread that polls the repository through the processor
auto_import  finds and imports plain SavedModels, Keras and ONNX files
import_process  one running import, in a process of its own, with limits
triton_config  checks a config.pbtxt, and reports the settings that are ignored
priority     background threads that yield the CPU to requests
"""

__all__ = ["auto_import", "import_process", "priority", "watcher"]
