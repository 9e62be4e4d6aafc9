"""The sparse graph: a request's named inputs in, the dense graph's input out.

plan      names, types and rows checked once, then the few integers that the kernel takes
boundary  the cut between sparse and dense graph, tensor by tensor
stage     the seam to what runs an imported model's own preprocessing
"""

__all__ = ["boundary", "plan", "stage"]
