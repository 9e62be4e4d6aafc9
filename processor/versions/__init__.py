"""Versions that are served: each with the life of their deltas, one writer a model, replicas that sessions read.

host            the models of a repository and their changes
model           one model: its loaded versions, its labels, the single writer
routed_model    one model as requests see it: its routes, and the policy that they follow from
log_applier     makes a version what the records of its chain say
rejection       what a rejected delta leaves of those behind it
automatic_release  whose a hold is, and when it may end by itself
timeline        its newest records as a person reads them
pre_deploy_check  deltas looked at before they are served, and watched after
preview         rows asked for lately, scored under a state that nobody is served yet
served_version  a loaded version, the writer's side: stage, flip, reclaim, undo
replica         a loaded version, the reader's side: what sessions pin and run
control         the words that a flip changes, shared by all processes
change_results  what a change of a model answers
dirty_versions  versions whose log is to be read again, because a change of them has failed
lock_watchdog   how long one change has held up all others
poll_rounds     one look at each model, in which nobody waits for the slow
warm_up         warm-up: recorded requests through every bucket before a version is offered
user_split      the user's part of a dense graph, run once a request
staleness       when what is served is too old for whoever set a bound
failed_versions  versions that could not be served, and when to try them again
routes          which version answers a request
traffic         splits over labels, and what was taken out of them
policy          what an operator wants of a model
"""

__all__ = [
    "change_results",
    "control",
    "failed_versions",
    "host",
    "model",
    "policy",
    "preview",
    "rejection",
    "replica",
    "routes",
    "served_version",
    "timeline",
    "traffic",
    "user_split",
]
