"""`freshet serve --workers N`: one supervisor, N processes that answer.

nursery        the process that workers are forked from
fleet          the supervisor's side of the processes: spawn, speak, bury, replace
fleet_host     the supervisor's side of the models: who reads a version, and what every worker is told
fleet_metrics  /metrics of all workers
acceptor       the supervisor's data port: accepts connections and hands them out
worker         one process: data ports, sessions, replicas
worker_counts  what a worker has counted, and how the counts of many add up
sequences      tasks in order within a version, side by side between versions
changes        a version's frames on their way to another process
channel        what the two sides speak through
parcel         arrays on that channel
"""

__all__ = ["acceptor", "fleet", "fleet_host", "fleet_metrics", "nursery"]
