"""The edges: HTTP, gRPC, the admin port, worker processes, the command line.

commands         the `freshet` command
server           the server process: its ports, the watcher, readiness, an orderly end
workers          one supervisor, N processes that answer
process_layout   how many processes answer, and where they compute
serve_config     the options of `freshet serve`
front_options    the options of the data ports
data_ports       HTTP and gRPC of one process, begun and ended together
admin            the admin port
http             the HTTP port
rpc              the gRPC port
front            what both ports ask a processor, and how replies come back
access           who may ask what, and how often
telemetry        logs, metrics, traces, recordings
loading          what brings versions and deltas in from the repository
request_headers  what a request says of itself beside its body
codecs           protocols as pure functions
shutdown_watchdog      ends a process that has been told to end and does not
lifecycle        whether there is a processor, and new traffic is wanted
client           the client of predictions
"""

__all__ = ["client", "commands"]
