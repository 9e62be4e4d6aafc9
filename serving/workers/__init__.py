"""`freshet serve --workers N`: one supervisor, N processes that answer.

fork_server    the process that workers are forked from
worker_pool    the supervisor's side of the processes: spawn, speak, bury, replace
worker_pool_host  the supervisor's side of the models: who reads a version, and what every worker is told
worker_pool_metrics  /metrics of all workers
acceptor       the supervisor's data port: accepts connections and hands them out
worker         one process: data ports, sessions, replicas
worker_counts  what a worker has counted, and how the counts of many add up
keyed_executor  tasks in order within a version, side by side between versions
frame_transfer  a version's frames on their way to another process
channel        what the two sides speak through
array_packing  arrays on that channel
"""

__all__ = ["acceptor", "fork_server", "worker_pool", "worker_pool_host", "worker_pool_metrics"]
