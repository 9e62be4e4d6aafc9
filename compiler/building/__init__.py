"""Executables for every bucket: compiled, proven, measured, chosen.

compile    a dense graph compiled for every bucket, each result proven
parts      what is compiled of a dense graph: the whole, and the parts of the user-once division
bucket_list  which batch sizes to compile for
calibrate  of each bucket the fastest backend that is right
role_compiler  every part compiled for some variants, measured and chosen
packaging  a model as a committed version: where training and import end
auc        area under the ROC curve
"""

__all__ = ["auc", "bucket_list", "calibrate", "compile", "packaging", "parts", "role_compiler"]
