"""The sparse graph: turn a request's named inputs into the dense graph's input.

limits      limits of a request, checked before its values are read
plan        checks names, types and rows once, then passes a few integers to the kernel
sequences   aligns a request's lists of events and cuts them
evaluation  hash buckets, joins and crosses of a request's inputs
key_codes   the keys of hashed tables
stage       the interface to the runtime of an imported model's own preprocessing
"""

__all__ = ["evaluation", "key_codes", "limits", "plan", "stage"]
