"""Train a model on a stream of labelled rows, and publish versions, deltas and checkpoints.

loop             a whole run of `freshet train`
run_summary      what a run comes to
heartbeat        reports of a run's progress to its servers
run_start        choice of the state that a run starts from
learned_rows     recognition of the rows that a run has learned
odd_times        times that cannot be what they are read as
padded_lists     lists that are filled up to one length
lineage          sync of a run's weights with the change log of its version, rollbacks included
next_item_run    a run of a next-item network, whose rows are events of histories
next_item_trainer  one batch of such a run
trainer          one batch: pooled embeddings, the dense step, row updates
dense_step       forward and backward pass of a batch in parts, then an optimizer step
batch_part       one part of a batch, with the buffers that an executable reads
item_count_kernels  counting events one by one
described_items  rows of items that no event had, by what an entity says
item_counts      what it counts in the items' rows
item_sources     what ranks items for everybody: how popular they are, and when they were first seen
sourced_run      a run that keeps item_sources
vector_note      the note of a version with two towers
next_item_step   dense_step for histories whose next item is learned
dense_functions  the functions that XLA compiles
next_item_functions  those of next_item_step
history_division  a network's parts: what depends on histories alone, and the rest
retrieval_run    a run of two towers that learn to retrieve
retrieval_trainer  one batch of such a run
retrieval_step   dense_step for rows that are compared with one another
retrieval_functions  those of retrieval_step
recent_items     the items that were chosen last, and how often each is
dense_state      the state that passes from step to step
dense_optimizer  Adam with weight decay and clipping
losses           a loss for each row, and each row's weight in the mean
worker_pool      a few threads that share a list of calls
prefetch_windows  groups of batches whose rows are brought into memory first
shared_lists     long lists that rows of a batch share
same_histories   rows of a batch that have the same histories
schedule         learning rates over the steps of a run
divergence       end of a run whose loss or weights are not finite
early_stopping   choice of the best epoch, and of when epochs end
spec             manifest of a model, from its configuration
event_transforms  how features are derived from the events of a history
defaults         defaults of [train], chosen by the data
hash_choice      default hashing of tables, chosen by the data
resolved_config  a configuration with all defaults filled in
fingerprint      settings that decide which checkpoints a configuration can continue
table_export     export of a trainer's tables as Parquet at the end of a run
entities         entities of a version: their entries in the manifest, their records
entity_deltas    what deltas have of entities that a run follows
publication      publication of a trainer's state as a full version
full_versions    the full versions of a run
version_gate     verdict about a full version before it is served
version_review   figures of a full version and of the one before, for its gate
newest_events    the newest events of a log, ranked by both
newest_pairs     the newest rows that were chosen, ranked by both
package_shift    a package's scores against those of the weights that it was made of
version_retention  removal of old versions
delta_rules      rules for when a delta is due
stream_guard     collection of a window's scores, and holds of deltas
window_guard     statistical check of a window before its delta is served
rank_stream_guard  stream_guard by ranks
next_item_guard  rank_stream_guard for next-item networks
retrieval_guard  rank_stream_guard for two towers
rank_guard       window_guard for ranks
target_ranks     ranks of a batch's next items
pair_ranks       ranks of a batch's chosen items
stream_quality   quality of scores on a stream before training on it
published_baseline     a version as published, as a second scorer
repeated_rows    the share of rows that are there more than once
checkpoint       checkpoints from which a killed run resumes exactly
batch_borders    which rows a followed run has learned in which step
repeated_run     the same steps again, over stored rows
"""

__all__ = [
    "batch_part",
    "checkpoint",
    "dense_state",
    "dense_step",
    "heartbeat",
    "loop",
    "losses",
    "next_item_run",
    "next_item_step",
    "next_item_trainer",
    "publication",
    "repeated_run",
    "retrieval_run",
    "trainer",
]
