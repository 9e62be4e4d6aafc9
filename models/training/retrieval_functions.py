"""Functions that XLA compiles to train two towers to retrieve.

A row of a step is a user and the chosen item. Its loss is the cross-entropy of a softmax over candidates: the items of
all rows, and further ones (Yi et al., 2019; Yang et al., 2020). The logit of user i and candidate j is

    scale * <user_i, item_j> - log(expected_j)

where expected_j is how often such a step has this item among its candidates: of n rows and m further items, drawn
evenly from M, n * share_j + m / M. So popular items are not pushed down for being candidates more often, and the sum
estimates that over all items. Candidates that the user chose in another row of the step are left out.

The bias of the output `score` changes no order, and the softmax does not depend on it. It learns by the log-loss of the
rows' pairs and of each user with the next row's item, so that scores keep apart from 0 and 1: 0.5 is an item that is as
likely the user's as someone else's.
"""

from __future__ import annotations

from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.training.dense_functions import DenseFunctions, Tensors
from freshet_serving.models.zoo.arch import ITEM_VECTOR, USER_VECTOR, Towers

NEVER = -1e9


class RetrievalFunctions(DenseFunctions):
    """The functions of one network of two towers."""

    @property
    def towers(self) -> Towers:
        assert self._arch.towers is not None
        return self._arch.towers

    def rows_are_alone(self) -> bool:
        return False

    def learn(self, *given: Any) -> Tensors:
        """Compute the gradients of a step.

        Args:
            *given: x [n, width], of the rows; then
                more: float32 [m, width], of the further items, whose users do not matter;
                users: float32 [n], numbers from 0 to n - 1, the same for rows of one user;
                items: float32 [n + m], numbers from 0 to n - 1, the same for candidates of one item; n for an item of
                no row;
                expected: float32 [n + m], the logarithm of how often each is a candidate; for none, infinity;
                shares: float32 [n], weights of the rows;
                vectors: float32 [3, w], weights and moments;
                and the other state.

        Returns:
            The loss, its gradients by x, by `more` and by the weights [w], and the new values of the other state.
        """
        x, more, users, items, expected, shares, vectors, *other = given
        weights = self._unpacked(vectors)
        with tf.GradientTape() as tape:
            tape.watch([x, more, *weights])
            of_rows, after = self._call(self.towers.vectors, x, weights, other, True)
            candidates = of_rows[ITEM_VECTOR]
            if more.shape[0]:
                further, _ = self._call(self.towers.vectors, more, weights, other, True)
                candidates = tf.concat([candidates, further[ITEM_VECTOR]], 0)
            scale, bias = self._scale_and_bias(weights)
            products = tf.matmul(of_rows[USER_VECTOR], candidates, transpose_b=True)
            excluded = chosen_before(tf.cast(users, tf.int32), tf.cast(items, tf.int32))
            loss = softmax_loss(products * scale, expected, excluded, shares)
            total = loss + bias_loss(products, tf.stop_gradient(scale), bias, excluded, shares)
        by_x, by_more, *grads = tape.gradient(
            total, [x, more, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [loss, by_x, by_more, tf.concat([tf.reshape(grad, (-1,)) for grad in grads], 0), *after]

    def vectors(self, *given: Any) -> Tensors:
        """Return the users' and the items' vectors, [n, d] each, of x [n, width] and the vectors [3, w]."""
        x, vectors = given
        both, _ = self._call(self.towers.vectors, x, self._unpacked(vectors), self._unused_state(), False)
        return [both[USER_VECTOR], both[ITEM_VECTOR]]

    def _scale_and_bias(self, weights: Tensors) -> tuple[Any, Any]:
        vector_paths = {v.path for v in self.towers.vectors.trainable_variables}
        scale, bias = (w for v, w in zip(self.trained, weights) if v.path not in vector_paths)
        temperature = self.towers.temperature
        return tf.constant(1 / temperature) if temperature else tf.reshape(scale, ()), tf.reshape(bias, ())


def chosen_before(users: Any, items: Any) -> Any:
    """Return which candidates are left out of which row's softmax, bool [n, c]; arguments as of learn()."""
    rows = users.shape[0]
    pairs = tf.stack([users, items[:rows]], axis=1)
    chose = tf.scatter_nd(pairs, tf.ones(rows), (rows, rows + 1))
    # As numbers: the compiler cannot read its own form of constants of bools.
    others = tf.linalg.set_diag(tf.gather(tf.gather(chose, users), items, axis=1), tf.zeros(rows))
    return others > 0


def softmax_loss(logits: Any, expected: Any, excluded: Any, shares: Any) -> Any:
    """Return the weighted sum of the rows' cross-entropies by logits [n, c]; candidate i is what row i chose.

    `expected` are logarithms [c] taken from the logits; `excluded` candidates [n, c] are left out.
    """
    rows = logits.shape[0]
    corrected = tf.where(excluded, NEVER, tf.maximum(logits - expected, NEVER))
    chosen = tf.linalg.diag_part(corrected[:, :rows])
    return tf.reduce_sum((tf.reduce_logsumexp(corrected, axis=1) - chosen) * shares)


def bias_loss(products: Any, scale: Any, bias: Any, excluded: Any, shares: Any) -> Any:
    """Return the weighted log-loss of pairs and of each user with the next row's item, which teaches only the bias."""
    rows = products.shape[0]
    logits = tf.stop_gradient(products[:, :rows]) * scale
    chosen = tf.linalg.diag_part(logits) + bias
    numbers = tf.range(rows)
    following = tf.stack([numbers, tf.math.floormod(numbers + 1, rows)], axis=1)
    other = tf.gather_nd(logits, following) + bias
    counts = tf.where(tf.gather_nd(excluded, following), 0.0, shares)
    return tf.reduce_sum(tf.math.softplus(-chosen) * shares + tf.math.softplus(other) * counts)
