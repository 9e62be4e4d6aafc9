"""Bring new versions and deltas in from the repository, in the background.

watcher      one thread that polls the repository through the processor
refused_sources  refuses what only the extension auto_import can bring in
priority     background threads that yield the CPU to requests
"""

__all__ = ["priority", "refused_sources", "watcher"]
