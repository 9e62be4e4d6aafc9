"""Loading: what brings versions and deltas in from the repository, beside the requests.

watcher      one thread that asks the processor whether anything is new
auto_import  plain SavedModels, Keras and ONNX files: found, and imported
import_process  one import at work, in a process of its own, held to limits
triton_config  what is said of a config.pbtxt
priority     writers that give way to requests
"""

__all__ = ["auto_import", "import_process", "priority", "watcher"]
