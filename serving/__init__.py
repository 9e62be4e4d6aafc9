"""The serving layer: HTTP, gRPC, the admin port, worker processes, the command line.

extensions       what answering predictions does not need: a folder each
ports            what extensions offer the server
commands         the `freshet` command
server           the server process: its ports, the watcher, readiness, graceful shutdown
workers          one supervisor and N worker processes that answer requests
process_layout   number of processes, and where they compute
server_parts     parts of a server that extensions are made from
serve_config     the options of `freshet serve`; refuses those of extensions that are not there
front_options    the options of the data ports
data_ports       HTTP and gRPC of one process, started and stopped together
http             the HTTP port
rpc              the gRPC port
front            request handling that both ports share
access           authentication, authorization and rate limits
telemetry        logs, metrics, traces, recordings
loading          brings versions and deltas in from the repository
request_headers  request headers with a meaning in every protocol
sample           the model of `freshet serve --sample`
codecs           protocols as pure functions
shutdown_watchdog      ends a process that does not shut down in time
lifecycle        availability of the processor, readiness and draining
client           client library for predictions
"""

__all__ = ["client", "commands"]
