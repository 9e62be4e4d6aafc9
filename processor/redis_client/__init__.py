"""Shared by all readers of Redis: commands, replies bounded in time and bytes, a circuit breaker, a cluster's slots.

commands         encoder of Redis commands
replies          parser of Redis replies, bounded in time and bytes
circuit_breaker  circuit breaker of a store that fails
cluster_slots    which node of a Redis Cluster serves which slots
"""

__all__ = ["circuit_breaker", "cluster_slots", "commands", "replies"]
