"""Sessions: queue requests, form batches, compute them on replicas of versions and deliver replies.

predictor        the entry point for requests in every process that answers them
placement        the session groups of a process: their models, session counts and cores
session_options  the options of sessions and groups, as users write them and as the layout has decided
group            a SessionGroup: N sessions and the queues in front of them
session_thread   the thread of a session
session          one executor with its own buffers, and the queue that it takes work from
fair_shares      what each model and each API key has been given, and may queue
batcher          auto-batching: batch formation, ordering, expiry and load shedding
split_request    a large request divided over sessions and answered as one
stages           what runs the batches that sessions have filled, if an extension does
background_worker  bounded queue and thread for work on already answered requests
observers        what sees the requests of a process: shadows, trials, recorders
user_requests    requests about kept users, completed, prepared and released
answerer         what answers requests in place of the batcher
request          the values that travel through a group: request, reply, work item
"""

__all__ = [
    "answerer",
    "background_worker",
    "group",
    "observers",
    "placement",
    "predictor",
    "request",
    "session",
    "session_options",
    "split_request",
    "stages",
]
