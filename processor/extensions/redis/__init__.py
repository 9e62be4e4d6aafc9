"""The Redis client of the extensions that read a Redis server; it offers nothing itself.

replies          encodes commands, and reads replies within a deadline and a size limit
slots            which node of a cluster serves which slots
circuit_breaker  spares a store that fails
connections      options of connections, and their failures in a few words
"""

from freshet_serving.processor.ports import Extension

__all__ = ["circuit_breaker", "connections", "replies", "slots"]

REQUIRES = ()
EXTENSION = Extension()
