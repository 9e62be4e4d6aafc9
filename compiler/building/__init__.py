"""Executables for every bucket: compile, verify, measure, choose.

compile    compiles a dense graph for every bucket and verifies each result
parts      the graphs to compile: the whole, and both parts of the user/candidate split
bucket_list  chooses the batch sizes to compile for
calibrate  chooses the fastest correct backend for each bucket
subgraph_compiler  compiles every part for several variants, measures and chooses
finite_check  refuses rows that are not numbers, and notes that nothing else was judged
package_files  writes a version's tables, weights, stage and dense graph
unlabelled_review  compares inputs, tables and ids of such a version with the version before
packaging  publishes a model as a committed version: the last step of training and import
auc        area under the ROC curve
recompile  recompiles a version that is already in a repository: backends, buckets, calibration, a new manifest
calibration_rows  calibration sets, from the version's tables or labelled data
compile_report    costs and errors by backend and bucket, as lines of text
"""

__all__ = [
    "auc",
    "bucket_list",
    "calibrate",
    "compile",
    "compile_report",
    "finite_check",
    "package_files",
    "packaging",
    "parts",
    "recompile",
    "subgraph_compiler",
]
