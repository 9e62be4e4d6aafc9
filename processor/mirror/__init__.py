"""Repositories in object stores: what is there, and the local folder that stands for it.

object_store  one prefix of one bucket: objects read, created once, listed by folder
"""

__all__ = ["object_store"]
