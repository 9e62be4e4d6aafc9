"""Benchmarks: kernels in pairs in one process, and servers side by side; every figure a ratio within one run.

scenarios       the scenarios of `make bench`
training        `make -C loadtest train`
verdict         `make -C loadtest verdict-lookup`
harness         what scenarios share: repository, payloads, servers, the form of results
needs           what a benchmark needs from outside, refused in one line
pairs           two things run in turn, compared pair by pair
bench_report    the page of `make bench`
bench_choices   `make -C loadtest choices`
bench_features  `make -C loadtest features`
bench_crosses   `make -C loadtest crosses`
history_models  networks over histories of it
bench_state  `make -C loadtest bench-state`
bench_top_items  `make -C loadtest top-items`
core_simulation  `make -C loadtest cores`
tails           `make -C loadtest tails`
tail_disturbances  what disturbs a server meanwhile
tail_parts      where the latency of its requests goes
stamped_server  the `freshet` command with stamps on its requests, and the null server
device_feed     `make -C loadtest device-feed`
core_kernels    cores that serve session groups, simulated
bench_retrieval_peers  `make -C loadtest retrieval-peers`
retrieval_side  our side of it
retrieval_peer  one vector index of it, and the data that all sides search
foreign_models  `make -C loadtest models`
bench_blocked   `make -C loadtest blocked`
blocked_side    the probed server of it
costly_requests   `make -C loadtest costly`
event_logs      the logs of `make -C loadtest event-logs`
bench_useronce  what the user-once division gains
calibration_rows  rows of practice, and what is compiled with them
bare            the engine with nothing around it
bench_engine    the engine against the bare loop
engine_time     processor time of the engine, in whichever checkout is imported
compute         computing without a server, in processes of its own
front           front end and engine in this process
echo            the fastest that a Python server can be asked to be
collector       an OpenTelemetry collector that throws spans away
lookup          lookups against numpy.take, and against an overlay index
bench_hashing   the hash kernel against the library
cold_start      `make -C loadtest cold-start`
startup_time    a start from a snapshot against a fresh version
words           `make -C loadtest words`: words of docs, lines, options, flags
"""

__all__ = ["calibration_rows"]
