"""How the stages of a step of training share threads and cores, whatever they compute.

ahead         work done ahead, in threads with bounded queues between them
crew          a few threads that share out a list of calls
step_profile  where the time of a step goes
"""

__all__ = ["ahead", "crew", "step_profile"]
