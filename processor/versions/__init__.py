"""Served versions: their deltas from record to flip, one writer per model, replicas that sessions read.

host            the models of a repository: loading, polling, changes, readiness
model           one model: its loaded versions, its labels, its single writer
routed_model    one model as requests see it: its routes, and the policy they follow from
log_applier     keep a loaded version in sync with its change log on disk
held_deltas     when a hold may be released automatically, and which deltas survive a rejected one
part_restoration  the delta that takes features, or rows and weights, back alone
timeline        the newest records of a version in a form for people
pre_deploy_check  check deltas before they are served, and keep what monitoring needs afterwards
preview         score recently requested rows under a state that is not served yet
kept_requests   kept requests as bytes: columns that another version, and a file, can hold
kept_file       kept requests over a restart, in the scratch folder
request_scoring  score kept requests under one version
version_gate    judge a new version by kept requests before it takes over
bake_time       how long a replaced version stays loaded
served_version  a loaded version, writer side: stage, flip, reclaim, undo
replica         a loaded version, reader side: what sessions pin and run; its warm-up
control         the shared words that a flip changes, mapped by all processes
change_results  results of changing a served model
score_watch     eject bad canaries, follow trends of scores, have bad deltas rolled back
readiness       reasons for being unready: a change that hangs, and staleness
poll_rounds     poll every model without waiting for slow ones
failed_versions  versions that failed to load and when to retry them; versions whose log must be re-read
routes          select the version that answers a request
trainer_watch   the trainers of models, as this server sees them
traffic         traffic splits over labels, and ejected versions
version_decisions  what bars versions from being chosen, and how people decide about them
version_rollback  go back to an earlier generation, or to an earlier version
overview        reports about the models of a host
policy          an operator's settings for a model
"""

__all__ = [
    "change_results",
    "control",
    "failed_versions",
    "held_deltas",
    "host",
    "model",
    "overview",
    "policy",
    "preview",
    "replica",
    "request_scoring",
    "routes",
    "score_watch",
    "served_version",
    "timeline",
    "traffic",
    "trainer_watch",
    "version_decisions",
    "version_rollback",
]
