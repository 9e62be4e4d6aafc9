"""`make bench-train`: a step of training beside PyTorch's and Keras', each in a process and environment of its own.

race          the sides in turn, their threads and settings tuned first; loadtest/results/train.md
race_shape    the network and the rows that all sides learn
growth        steps while a table grows; loadtest/results/train-growth.md
turns         a side's end of the line: "learn so many steps" in, seconds out
freshet_side  Freshet
keras_side    Keras fit, with its best of optimizer, jit_compile and steps a call
keras_quality  AUC beside plain Keras; loadtest/results/train-quality.md
tier_race     tables larger than memory beside the same in memory; loadtest/results/train-tiers.md
torch_side    PyTorch with sparse EmbeddingBags
"""

__all__: list[str] = []
