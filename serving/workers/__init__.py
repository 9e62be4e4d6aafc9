"""Run `freshet serve --workers N`: one supervisor and N processes that answer requests.

fork_server    the process that workers are forked from
worker_pool    the supervisor's view of the processes: spawn, message, reap, replace
worker_process  one of these processes: messages, heartbeat, reaping
worker_pool_host  the supervisor's models: the writer of each version, and what every worker receives
worker_replicas  a version's replicas in all workers
worker_pool_metrics  /metrics of all workers
acceptor       the supervisor's data port: accepts connections and hands them to workers
worker         one worker process: data ports, sessions, replicas
routed_engine  a worker's predictor and readiness, as the supervisor's routes say
worker_counts  a worker's counts, and how the counts of several processes add up
counter_layout  a worker's counter blocks in a report: the layout once, then the numbers
keyed_executor  runs tasks in order within a version, in parallel across versions
frame_transfer  sends a version's frames to another process
channel        the message channel between supervisor and worker
array_packing  arrays in messages of that channel
"""

__all__ = ["acceptor", "fork_server", "worker_pool", "worker_pool_host", "worker_pool_metrics"]
