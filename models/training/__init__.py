"""Training: a stream of labelled rows in; versions, deltas and checkpoints out.

loop             `freshet train`: a whole run
run_start        what a run goes on from, by what is there
lineage          where a run's weights stand on the chain of its version, and where they go when that is undone
trainer          one batch: pooled embeddings, the dense step, row updates
prefetch_windows  batches in groups whose rows are in memory before they are learned
schedule         learning rates over the steps of a run
early_stopping   when the epochs end, and with which weights
spec             from a configuration to the manifest
defaults         what a training file leaves out of [train], chosen by the data
hash_choice      how tables are hashed that do not say it themselves
resolved_config  a configuration with all that its file leaves out
fingerprint      what of a configuration decides which checkpoints it can continue
table_export     a trainer's tables as Parquet, at the end of a run
publication      a trainer's state as a full version
full_versions    the full versions of a run
version_retention  those that may go, and their end
delta_rules      when a delta is due
stream_guard     deltas held back, windows judged, rows learned before scored again
window_guard     whether what was learned of a window may be served
stream_quality   how well a stream is scored before it is learned
published_baseline     a version as it was published, as a second scorer
checkpoint       all it takes to go on exactly where a kill left it
"""

__all__ = ["checkpoint", "loop", "publication", "trainer"]
