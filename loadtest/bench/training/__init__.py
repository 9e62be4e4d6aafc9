"""Training beside its peers: `make -C loadtest train`, the time of a step.

race          the sides of a step, in turn, their threads and settings tuned first; loadtest/results/train.md
turns         the rows that all sides learn, and a side's end of the line: "learn so many steps" in, seconds out
freshet_side  Freshet
keras_side    Keras fit, with its best of optimizer, jit_compile and steps a call
follow_race   what it is worth to publish all the time; loadtest/results/follow.md
late_labels   labels that come late, joined and learned; loadtest/results/join.md
torch_side    PyTorch with sparse EmbeddingBags; DIN as a plain loop
sequence_quality  AUC of rankers over histories; loadtest/results/sequence-quality.md
sequence_rows  MovieLens-1M with histories, cut in three
next_item_logs  NDCG of default next-item files on logs that differ; loadtest/results/next-item-logs.md
rectools_side  RecTools' SASRec, in a process and environment of its own
leave_one_out  what they learn and are measured on
fuxictr_din_side  FuxiCTR's DIN, in a process and environment of its own
event_race    a file without a network on logs of events; loadtest/results/event-logs.md
event_rivals  counts, logistic regression and LightGBM in it, in an environment of their own
history_race  steps of DIN beside FuxiCTR's and PyTorch's; loadtest/results/train-histories.md
"""

__all__ = ["race", "turns"]
