"""Benchmarks: kernels in pairs in one process, and servers side by side; every figure a ratio within one run.

scenarios       the scenarios of `make bench`
training        `make -C loadtest train`
harness         what scenarios share: repository, payloads, servers, the form of results
needs           what a benchmark needs from outside, refused in one line
pairs           two things run in turn, compared pair by pair
bench_report    the page of `make bench`
bench_features  `make -C loadtest features`
bench_top_items  `make -C loadtest top-items`
device_feed     `make -C loadtest device-feed`
foreign_models  `make -C loadtest models`
event_logs      the logs of `make -C loadtest event-logs`
bench_useronce  what the user-once division gains
engine_time     processor time of the engine, in whichever checkout is imported
compute         computing without a server, in processes of its own: the bare loop, the engine
front           front end and engine in this process
echo            the fastest that a Python server can be asked to be; a collector that throws spans away
cold_start      `make -C loadtest cold-start`
words           `make -C loadtest words`: words of docs, lines, options, flags
"""

__all__ = ["harness"]
