"""Threads and cores shared between the stages of a training step, independent of what the stages compute.

prefetch      a prefetching pipeline: threads with bounded queues between them
worker_pool   a few threads that share a list of calls
step_profile  time per stage of a step
"""

__all__ = ["prefetch", "step_profile", "worker_pool"]
