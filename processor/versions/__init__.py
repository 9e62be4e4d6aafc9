"""Versions that are served: each with the life of their deltas, one writer a model, replicas that sessions read.

host            the models of a repository and their changes
model           one model: its loaded versions, its labels, the single writer
routed_model    one model as requests see it: its routes, and the policy that they follow from
log_applier     makes a version what the records of its chain say
held_deltas     when a hold may end by itself, and what a rejected delta leaves of those behind it
timeline        its newest records as a person reads them
pre_deploy_check  deltas looked at before they are served, and watched after
preview         rows asked for lately, scored under a state that nobody is served yet
served_version  a loaded version, the writer's side: stage, flip, reclaim, undo
replica         a loaded version, the reader's side: what sessions pin and run; its warm-up
control         the words that a flip changes, shared by all processes
change_results  what a change of a model answers
readiness       what makes a server unready: a change that hangs, and what is served being too old
poll_rounds     one look at each model, in which nobody waits for the slow
user_split      the user's part of a dense graph, run once a request
failed_versions  versions that could not be served, and when to try them again; those whose log is to be read again
routes          which version answers a request
traffic         splits over labels, and what was taken out of them
policy          what an operator wants of a model
"""

__all__ = [
    "change_results",
    "control",
    "failed_versions",
    "held_deltas",
    "host",
    "model",
    "policy",
    "preview",
    "replica",
    "routes",
    "served_version",
    "timeline",
    "traffic",
    "user_split",
]
