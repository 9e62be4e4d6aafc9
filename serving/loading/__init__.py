"""Loading: what brings versions and deltas in from the repository, beside the requests.

watcher      one thread that asks the processor whether anything is new
auto_import  plain SavedModels and Keras files, imported by a process of their own
priority     writers that give way to requests
"""

__all__ = ["auto_import", "priority", "watcher"]
