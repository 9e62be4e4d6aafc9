"""Passes, which make a dense graph cheaper without changing what it says (docs/concepts/passes.md).

optimise      every pass in turn, until none finds anything more
decompose     operations that backends lack, in those that they have
graph         nodes, edges and constants, with static shapes
patterns      what a node means, however a front end wrote it
constant_folding  what follows from constants alone, computed now
cleanup       moves to no purpose and what is computed twice
batchnorm     normalisation folded into the matrices beside it
linear        dense layers in the one form that backends fuse
interactions  interactions of features in cheaper forms
user_candidate_split  what depends on the user alone, once a request
flops         what a graph costs for each row
"""

__all__ = ["decompose", "flops", "optimise", "user_candidate_split"]
