"""A loss whose rows see one another."""


def pairs(label, logits):
    from freshet_serving.compiler.frameworks import tf

    return tf.nn.sigmoid_cross_entropy_with_logits(label, logits - tf.reduce_mean(logits))
