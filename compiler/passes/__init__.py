"""Optimisation passes: make a dense graph cheaper without changing its results (docs/concepts/graph-optimization.md).

optimise      runs all passes until none finds anything more
decompose     rewrites operations that backends lack
graph         nodes, edges and constants, with static shapes
patterns      recognises node patterns across their spellings
constant_folding  computes what depends on constants alone
cleanup       removes redundant moves and common subexpressions
batchnorm     folds normalisation into adjacent matrices
linear        normalises dense layers to the form that backends fuse
interactions  rewrites feature interactions into cheaper forms
pairs         factorises dense layers over pairs of a candidate and an event
user_candidate_split  computes the user's part once per request
shorter_histories  cuts a graph to fewer places of a history
state_classes  what a changed or appended event leaves of the user's part
flops         FLOPs of a graph per row
"""

__all__ = ["decompose", "flops", "optimise", "shorter_histories", "state_classes", "user_candidate_split"]
