"""Sessions, which compute: requests in, batches over the replicas of versions, replies out.

predictor        requests in, replies out: what every process that answers has
placement        the groups of a process: which models, how many sessions, which cores
occupancy        who computes now on the cores that several processes share
session_options  the options of sessions, as users write them
group            a SessionGroup: N sessions and the queues in front of them
session          one executor with its own buffers
batcher          which queued requests run together, when, and which not at all
split_request    a large request on several sessions, answered as one
device           device stages: threads that run what sessions have filled
staging_pool     trays between those that fill and those that run
background_worker  work on requests that were answered: a bounded queue, a thread
shadow           scores of a further version, after the reply
canary_trial     what a canary is judged on: what the baseline makes of its requests
request          what travels through a group
"""

__all__ = ["group", "occupancy", "placement", "predictor", "request", "session", "session_options", "shadow"]
