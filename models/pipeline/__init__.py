"""How the stages of a step of training share threads and cores, whatever they compute.

prefetch      work done ahead, in threads with bounded queues between them
worker_pool   a few threads that share out a list of calls
step_profile  where the time of a step goes
"""

__all__ = ["prefetch", "step_profile", "worker_pool"]
