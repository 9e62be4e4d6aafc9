"""A loss whose rows see one another."""


def pairs(label, logits):
    from freshet_serving.compiler.frameworks import tf

    return tf.nn.sigmoid_cross_entropy_with_logits(label, logits - tf.reduce_mean(logits))


def plain(label, logits):
    """The log-loss, as the file's own; that of several labels is their sum."""
    from freshet_serving.compiler.frameworks import tf

    losses = tf.nn.sigmoid_cross_entropy_with_logits(label, logits)
    return losses if len(losses.shape) == 1 else tf.reduce_sum(losses, axis=1)
