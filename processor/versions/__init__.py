"""Served versions: their deltas from record to flip, one writer per model, replicas that sessions read.

host            the models of a repository: loading, polling, changes, readiness
host_readiness  which models a host waits for, and why what it serves is no answer
upkeep          what a host does by itself between changes: on threads of its own, and finding trainers to watch
model           one model: its loaded versions, its labels, its single writer
routed_model    one model as requests see it: its routes, and the policy they follow from
loaded_version  a loaded version with its applier: load it, publish on it, judge what it serves
version_selection  which versions of a model are loaded, why others are not, and when to retry them
log_applier     keep a loaded version in sync with its change log on disk
run_reading     read a run of deltas of a change log, folded into one
held_deltas     when a hold may be released automatically, and which deltas survive a rejected one
part_restoration  the delta that takes features, or rows and weights, back alone
judges          the port of judges of deltas and versions
delta_checks    ask the judges before a delta is served, and log what became of it
row_watchers    the port of what extensions keep beside the rows of a version
sample          a sample of the rows that a replica is requested to score
erasure         erase a user from all that is kept
row_scoring     the port of what scores sampled rows, for judges
timeline        the newest records of a version in a form for people
served_version  a loaded version, writer side: stage, flip, reclaim, undo
replica         a loaded version, reader side: what sessions pin and run; its warm-up
control         the shared words that a flip changes, mapped by all processes
changes         a change of what is served: its guards (a watchdog, versions whose log must be re-read), states, results
score_watch     have bad canaries ejected, bad deltas and versions rolled back
poll_rounds     poll every model without waiting for slow ones
routes          select the version that answers a request
trainer_watch   the trainers of models, as this server sees them
traffic         traffic splits over labels, and ejected versions
version_decisions  what bars versions from being chosen
version_actions  decide about a repository's versions, and list them with what was decided
version_rollback  go back to an earlier generation, or to an earlier version
overview        reports about the models of a host
policy          an operator's settings for a model
"""

__all__ = [
    "changes",
    "control",
    "erasure",
    "held_deltas",
    "host",
    "judges",
    "model",
    "overview",
    "policy",
    "replica",
    "routes",
    "row_scoring",
    "row_watchers",
    "sample",
    "score_watch",
    "served_version",
    "timeline",
    "traffic",
    "trainer_watch",
    "version_actions",
    "version_decisions",
    "version_rollback",
]
