"""The front: what both ports ask a processor on behalf of clients, and how replies come back to their event loop.

queries        servables and admission, in the words that clients of each protocol know
exchange       one prediction, from its headers to its encoded reply
dispatcher     where the ports of one event loop submit requests
offload_executor  what would hold the event loop up, on threads of its own: long requests, versions with a stage
resource_limits  what clients may hold of a process: bytes of bodies, connections
catalog        what clients ask about the server and its models
model_control  what clients ask of the whole server: statistics, loading, unloading
shared_memory  regions of system shared memory that clients have registered
example_text   the first rows of a request as JSON text
backlog        what waits in a listener's queue at its end
"""

__all__ = [
    "backlog",
    "catalog",
    "dispatcher",
    "example_text",
    "exchange",
    "model_control",
    "queries",
    "resource_limits",
    "shared_memory",
]
