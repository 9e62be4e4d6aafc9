"""Executables for every bucket: compile, verify, measure, choose.

compile    compiles a dense graph for every bucket and verifies each result
parts      the graphs to compile: the whole, and both parts of the user/candidate split
bucket_list  chooses the batch sizes to compile for
calibrate  chooses the fastest correct backend for each bucket
subgraph_compiler  compiles every part for several variants, measures and chooses
packaging  publishes a model as a committed version: the last step of training and import
auc        area under the ROC curve
"""

__all__ = ["auc", "bucket_list", "calibrate", "compile", "packaging", "parts", "subgraph_compiler"]
