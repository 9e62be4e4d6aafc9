"""The sparse graph: a request's named inputs in, the dense graph's input out.

limits      what a request may cost, known before a value of it is looked at
plan        names, types and rows checked once, then the few integers that the kernel takes
evaluation  hash buckets, joins and crosses of a request's inputs
key_codes   the keys of hashed tables
stage       the seam to what runs an imported model's own preprocessing
"""

__all__ = ["evaluation", "key_codes", "limits", "plan", "stage"]
