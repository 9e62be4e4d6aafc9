"""Networks over the dense input, by name or from the user's own module.

arch           an architecture, found by name or as "package.module:function"
architectures  the names of the zoo, without TensorFlow
option_types   what options of an architecture may be
dense_input    which columns of the dense input are what
deepfm         a linear model, a factorisation machine and an MLP, added up
dlrm           a bottom MLP, inner products of all pairs, a top MLP
dcn            a cross network beside an MLP, or below it
wide_deep      a linear model and an MLP, added up
mmoe           experts that several labels share, a gate and a tower for each label
esmm           click and conversion, over all impressions
two_tower      a vector of the user, a vector of the item, and their inner product
layers         the pieces that these are made of
"""

__all__ = ["arch", "architectures", "deepfm", "dense_input", "option_types"]
