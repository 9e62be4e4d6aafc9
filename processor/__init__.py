"""Freshet's engine, the ground floor: package format, tables and kernels, versions, sessions; nothing of other floors.

engine      the processor as a library: initialize, process, batch_process, info, close
overview    reports about the models of a host
explaining  what a score was made of, under one generation or two
sessions    who computes: batcher, sessions and their groups, device stages, shadow traffic
versions    what is served: versions, their deltas and replicas, labels, splits, the one writer
watching    what is counted of batches and scores, and what is concluded from it
backends    what runs dense graphs, one module a library, and what a batch costs on them
features    the sparse graph: a request's named inputs in, the dense graph's input out
tables      embedding tables: rows in memory, on disk, in a row store
kernels     what Numba compiles
repository  versions, change logs and signatures, in folders and object stores
package     the on-disk format; numpy alone
eas         DeepRec's messages
capi        DeepRec Processor's C interface
generation  which state answers, and where a version in memory stands
columns     the shapes in which feature values travel
errors      every error a caller can meet, and which pass by themselves
extras      libraries that may be missing, and what brings them
memory      memory that other processes can map
standby_thread   threads made at the start, for where memory is short there are no more
cores       cpusets and memory nodes, and how much of them a process is allowed
machine     what this machine's processor can do
options     what a field of a dataclass of options says of itself
clock       time as a collaborator
"""

__all__ = [
    "backends",
    "clock",
    "columns",
    "cores",
    "eas",
    "engine",
    "errors",
    "explaining",
    "extras",
    "features",
    "generation",
    "kernels",
    "machine",
    "memory",
    "options",
    "overview",
    "package",
    "repository",
    "sessions",
    "standby_thread",
    "tables",
    "versions",
    "watching",
]
