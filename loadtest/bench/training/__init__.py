"""Training beside its peers: `make -C loadtest train`, the time of a step; `make -C loadtest quality`, the AUC.

race          the sides of a step, in turn, their threads and settings tuned first; loadtest/results/train.md
race_shape    the network and the rows that all sides learn
growth        steps while a table grows; loadtest/results/train-growth.md
process_race  two processes that learn together beside one; loadtest/results/train-processes.md
process_side  one side of it
process_shapes  what its sides learn
process_grid  what several processes learn beside one, by every optimizer; loadtest/results/train-processes-grid.md
process_auc   the AUC of a stream, and scores on the way, by one process or several
turns         a side's end of the line: "learn so many steps" in, seconds out
freshet_side  Freshet
keras_side    Keras fit, with its best of optimizer, jit_compile and steps a call
follow_race   what it is worth to publish all the time; loadtest/results/follow.md
follow_histories  a followed shop log under kills, beside a run that repeats it; loadtest/results/follow-histories.md
shop_feed     its feed: impressions, clicks and items
follow_cost   what following costs with histories and entities; loadtest/results/follow-cost.md
follow_worth  served fresh against frozen; loadtest/results/follow-worth.md
follower      a trainer that follows, in a process of its own
user_memory   memory of the events of all users; loadtest/results/user-memory.md
user_memory_side  a process of it
late_labels   labels that come late, joined and learned; loadtest/results/join.md
nights        good and bad nights before both gates; loadtest/results/nights.md
night_rows    the rows of them, and what is wrong with these
night_packages  packages of bad nights whose training was good
night_server  a server's model that the nights' versions are offered to
tier_race     tables larger than memory beside the same in memory; loadtest/results/train-tiers.md
torch_side    PyTorch with sparse EmbeddingBags
quality_race  AUC beside peers; loadtest/results/train-quality.md
quality_rows  MovieLens-1M cut in three, as every side learns it
keras_quality  plain Keras, the same network
fuxictr_side  FuxiCTR's DCN-v2, in a process and environment of its own
sequence_quality  AUC of rankers over histories; loadtest/results/sequence-quality.md
sequence_rows  MovieLens-1M with histories, cut in three
next_item_costs  what counts in the items' rows cost; loadtest/results/next-item-costs.md
next_item_logs  NDCG of default next-item files on logs that differ; loadtest/results/next-item-logs.md
next_item_race  NDCG of next-item models over all items; loadtest/results/next-item.md
next_item_side  one of Freshet's
rectools_side  RecTools' SASRec, in a process and environment of its own
leave_one_out  what they learn and are measured on
fuxictr_din_side  FuxiCTR's DIN, in a process and environment of its own
fuxictr_fit   what ends both: its fit, and the AUC
two_towers    recall of two_tower beside PyTorch's; loadtest/results/two-towers.md
two_towers_torch  the same as a plain PyTorch loop
event_race    a file without a network on logs of events; loadtest/results/event-logs.md
event_rivals  counts, logistic regression and LightGBM in it, in an environment of their own
event_din_side  DIN in PyTorch in it
history_race  steps of DIN beside FuxiCTR's and PyTorch's; loadtest/results/train-histories.md
history_side  Freshet in it
torch_din_side  DIN as a plain PyTorch loop
small_runs    runs over few new rows; loadtest/results/small-runs.md
loops         loops that publish, and what is served after each delta; loadtest/results/training-loops.md
"""

__all__ = ["race", "turns"]
