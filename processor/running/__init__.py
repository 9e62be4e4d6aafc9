"""Run a version's dense graph: which executables serve, what fills their inputs, in which buckets rows are run.

runner        covers rows of requests with buckets, fills, runs, cuts, notes costs
graph_run     a version's subgraphs as they are run, and when to divide them
split_choice  which sizes of requests are divided: by timing at load, then by what requests take
choices       what was chosen of several ways, and what the others cost, for people
fillers       what fills each named input
sequence_filler  inputs that hold a user's events
placed_rows   the seam of what runs graphs on rows in the memory of a device
given_rows    executables run on rows that were filled before
warm_up       runs executables before a request does, and measures their costs
user_states   the seam of what keeps the user's part of requests
run_limit     ends runs that take longer than their requests can wait
buffers       a session's buffers for one version, bound before a request needs them
cost          measured costs of batches, and the cheapest buckets for their rows
opening       which executables of a version serve here, and why others do not
bounded       lower precision, used as long as its scores stay within a bound of float32's
side_columns  executables of format 1, which read the user's vector from side columns
"""

from freshet_serving.processor.running.opening import OpenedPrograms, Package, executable_files, open_programs

__all__ = [
    "OpenedPrograms",
    "Package",
    "bounded",
    "buffers",
    "choices",
    "cost",
    "executable_files",
    "fillers",
    "given_rows",
    "graph_run",
    "open_programs",
    "opening",
    "placed_rows",
    "run_limit",
    "runner",
    "sequence_filler",
    "split_choice",
    "user_states",
    "warm_up",
]
