"""A loss whose rows see one another."""


def pairs(label, logits):
    from compiler.frameworks import tf

    return tf.nn.sigmoid_cross_entropy_with_logits(label, logits - tf.reduce_mean(logits))
