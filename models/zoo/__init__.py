"""Networks over the dense input, by name or from the user's own module.

Options of builders, unless they say more: `hidden` has the units of each layer of the MLP or of each tower, `dropout`
is that of these layers (of events and all layers in networks of the next item), `units` the width of an event, `seed`
that of the first weights. models.zoo.option_types has the others.

arch           an architecture, found by name or as "package.module:function"
architectures  the names of the zoo, without TensorFlow
option_types   types of an architecture's options
dense_input    the columns of the dense input by feature
deepfm         the sum of a linear model, a factorisation machine and an MLP
dlrm           a bottom MLP, inner products of all pairs, a top MLP
dcn            a cross network beside an MLP, or below it
wide_deep      the sum of a linear model and an MLP
mmoe           experts that several labels share, a gate and a tower for each label
esmm           click and conversion, over all impressions
two_tower      a user vector, an item vector, and their inner product
din            a user's events weighed by how each goes with the candidate
stca           layers of attention from the candidate to a user's events
sasrec         a user's events attend to earlier ones; the last one meets the candidate
hstu           events and the candidate attend without a softmax, by position and time
bst            a user's events and the candidate attend to each other
next_item_network  what networks of the next item share: their score
histories      sequences as these networks see them
layers         layers that these networks share
counted_odds   log-odds of what a feature has counted, as numbers that any of them reads
field_gates    a learned factor for each embedding beside counts
wide_weights   linear weights of ids, added to the logit of any of them
"""

__all__ = [
    "arch",
    "architectures",
    "counted_odds",
    "deepfm",
    "dense_input",
    "next_item_network",
    "option_types",
    "wide_weights",
]
