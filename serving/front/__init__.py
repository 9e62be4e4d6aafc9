"""Connect both data ports to the processor: submit their requests, and return replies to their event loop.

queries        servables and admission, in each protocol's terms and error messages
exchange       one prediction, from its headers to its encoded reply
dispatcher     submits the requests of all ports of one event loop
offload_executor  threads for work that would block the event loop: long requests, versions with a stage, any function
resource_limits  limits on what clients hold of a process: bytes of bodies, connections
catalog        metadata of the server and its models
model_control  operations on the whole server: statistics, loading, unloading
shared_memory  regions of shared memory that clients have registered, which an extension serves
example_text   the first rows of a request as JSON text
backlog        serves the connections in a listener's queue when the listener ends
"""

__all__ = [
    "backlog",
    "catalog",
    "dispatcher",
    "example_text",
    "exchange",
    "model_control",
    "offload_executor",
    "queries",
    "resource_limits",
    "shared_memory",
]
