"""Freshet's engine: package format, tables and kernels, versions, sessions. Imports nothing of other top folders.

extensions  what a predict and a delta do not need: a folder each
engine      the processor as a library: initialize, process, batch_process, info, close
sessions    executes requests: batcher, sessions and their groups, device stages, shadow traffic
versions    what is served: versions, their deltas and replicas, labels, splits, the one writer
watching    statistics of batches and scores, and verdicts on deltas and canaries
running     runs a version's dense graph: what fills its inputs, in which buckets, on which executables
backends    dense graphs on libraries, one module per library
features    the sparse graph: from a request's named inputs to the dense graph's input
tables      embedding tables: rows in memory and on disk
kernels     Numba kernels
repository  versions, change logs and signatures
package     the on-disk format; numpy alone
capi        the command that builds DeepRec Processor's C interface
generation  the state that answers, and the position of a loaded version in its change log
counter_block  counters of one owner, which add up over owners and processes
columns     the column types that carry feature values
errors      every error a caller can meet, and which of them are transient
ports       what the core asks of extensions, and how these are found
extras      optional libraries, and the extras that install them
memory      memory that other processes can map
standby_thread   threads created at the start, since none can be created when memory is short
cores       cpusets and memory nodes, and how much of them a process may use
machine     the features of this machine's processor
lazy_names  loads the names that a subpackage exports on first use
options     declares options as fields of dataclasses
clock       an injectable clock
"""

__all__ = [
    "backends",
    "clock",
    "columns",
    "cores",
    "counter_block",
    "engine",
    "errors",
    "extensions",
    "extras",
    "features",
    "generation",
    "kernels",
    "lazy_names",
    "machine",
    "memory",
    "options",
    "package",
    "ports",
    "repository",
    "running",
    "sessions",
    "standby_thread",
    "tables",
    "versions",
    "watching",
]
