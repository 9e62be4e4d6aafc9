"""Benchmarks: kernels in pairs in one process, and servers side by side; every figure a ratio within one run.

scenarios       the scenarios of `make bench`
training        `make -C loadtest train`
verdict         `make -C loadtest verdict`
harness         what scenarios share: repository, payloads, servers, the form of results
needs           what a benchmark needs from outside, refused in one line
pairs           two things run in turn, compared pair by pair
bench_report    the page of `make bench`
bench_backends  `make -C loadtest backends`
bench_choices   `make -C loadtest choices`
bench_tables    `make -C loadtest tables`
bench_data      `make -C loadtest data`
bench_defaults  `make -C loadtest defaults`
bench_admission  `make -C loadtest admission`
bench_small_tables  `make -C loadtest small-tables`
bench_guard     `make -C loadtest guard`
bench_gate      `make -C loadtest gate`
bench_feast     `make -C loadtest feast`
bench_features  `make -C loadtest features`
bench_crosses   `make -C loadtest crosses`
bench_sequences  `make -C loadtest bench-sequences`
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
sequence_peer   the networks of it in PyTorch
plain_din       DIN as its paper writes it
foreign_models  `make -C loadtest models`
store_outages   reads of online features while the store is well, slow, wrong or gone
feast_side      the half of it that runs in Feast's own environment
bench_feast_server  `make -C loadtest feast-server`
bench_slow_store  `make -C loadtest slow-store`
bench_blocked   `make -C loadtest blocked`
blocked_side    the probed server of it
costly_requests   `make -C loadtest costly`
feast_server_side  the half of it that runs in Feast's own environment
guard_streams   good streams of `make -C loadtest guard`, trained and kept
guard_replay    a server's model that follows a kept stream in process
guard_poison    poison of `make -C loadtest guard`
guard_trial     good streams followed, poison tried on each
shop_streams    made-up shops whose good streams look odd
labelled_tables  the tables of `make -C loadtest defaults`
event_logs      the logs of `make -C loadtest event-logs`
random_tables   the tables of `make -C loadtest small-tables`
bench_passes    what the compiler's passes gain
bench_useronce  what the user-once division gains
calibration_rows  rows of practice, and what is compiled with them
bare            the engine with nothing around it
bench_engine    the engine against the bare loop
engine_time     processor time of the engine, in whichever checkout is imported
compute         computing without a server, in processes of its own
front           front end and engine in this process
echo            the fastest that a Python server can be asked to be
collector       an OpenTelemetry collector that throws spans away
crowding        what a saturated neighbour does to latency
lookup          lookups against numpy.take, and against an overlay index
bench_hashing   the hash kernel against the library
loading         how long executables take from disk
cold_start      `make -C loadtest cold-start`
startup_time    a start from a snapshot against a fresh version
scale           one table of 20 million rows
memory_budget   a memory budget against all rows in memory
dtypes          smaller rows on real data
words           `make -C loadtest words`: words of docs, lines, options, flags
"""

__all__ = ["calibration_rows"]
