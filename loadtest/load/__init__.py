"""Load generators, what became of their requests, and the processes they load; over the network only.

launch        the installed `freshet` command in processes of its own
openloop      requests go out when they are due, however slow the replies are
wrk           wrk as the client that saturates a server
h2load        h2load as the client that saturates a gRPC port
replay        recorded requests as a payload
payload       prepared requests on disk
encoding      what goes over the wire, by the protocols' own documents
admin_calls   calls of the admin API, timed to the byte
outcome       what became of the requests of an open-loop run
measurements  latencies, faults and generations as they happen
processes     memory and processor time of a server
sides         things measured in turn, and the ratios between them
"""

__all__ = [
    "admin_calls",
    "encoding",
    "h2load",
    "launch",
    "measurements",
    "openloop",
    "outcome",
    "payload",
    "processes",
    "sides",
    "wrk",
]
