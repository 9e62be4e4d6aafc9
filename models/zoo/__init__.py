"""Networks over the dense input, by name or from the user's own module.

arch           an architecture, found by name or as "package.module:function"
architectures  the names of the zoo, without TensorFlow
dense_input    which columns of the dense input are what
deepfm         a linear model, a factorisation machine and an MLP, added up
dlrm           a bottom MLP, inner products of all pairs, a top MLP
layers         the pieces that these are made of
"""

__all__ = ["arch", "architectures", "deepfm", "dense_input"]
