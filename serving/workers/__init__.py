"""`freshet serve --workers N`: one supervisor, N processes that answer.

fleet     the supervisor's side of the processes: spawn, speak, bury, replace
host      the supervisor's side of the models: who reads a version, and what every worker is told
door      the supervisor's data port: accepts connections and hands them out
worker    one process: data port, sessions, replicas
channel   what the two sides speak through; parcel: arrays on it
report    what a worker has counted, and how the counts of many add up
"""
