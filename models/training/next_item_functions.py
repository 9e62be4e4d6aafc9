"""Functions that XLA compiles to train a network on which item comes next in a history.

Every event of a history but the first is a target, compared with the user's vector after the event before it. Its loss
is the cross-entropy of a softmax over the target and the step's candidates: items drawn evenly and without repetition,
the same for all targets. With fewer candidates than items, a candidate's logit is raised by log(items / candidates), so
that the sum estimates that over the catalogue (Bengio and Senécal, 2003). A binary loss with a few negatives a target
learns scores that are too high and a worse order unless it is calibrated (Petrov and Macdonald, 2023).

Logits [targets, candidates] are never held at once: a loop over CHUNK real targets adds up loss and gradients.
"""

from __future__ import annotations

from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.training.dense_functions import DenseFunctions, Tensors
from freshet_serving.models.zoo.dense_input import ColumnSpan, SequenceSpan
from freshet_serving.processor.package.item_rows import LOG_FLOOR, SCALE, ItemRows

CHUNK = 128
"""Targets of one product with the candidates: its logits stay in the processor's cache, and a stream's batch with a
target or two a history fills it."""
NEVER = -1e9


class NextItemFunctions(DenseFunctions):
    """The functions of one network, whose sequence has one more event in training than when served."""

    sequence: SequenceSpan
    item: ColumnSpan

    def rows_are_alone(self) -> bool:
        """Return True: no layer of these networks mixes histories, so none is tried."""
        return True

    def learn(self, *given: Any) -> Tensors:
        """Compute the gradients of some histories.

        Args:
            *given: The sequence [rows, width]; then
                candidates: float32 [m, d], rows of items, as far as a product reads them;
                raised: float32 [m], added to each candidate's logit;
                places: float32 [rows * length], the target's place among the candidates, or -1;
                shares: float32 [rows * length], each target's weight in the loss;
                order: float32 [rows * length], numbers of targets, those with a weight first;
                count: float32 [1], how many have a weight;
                with successors, float32 [rows * length, s]: the place of each among the candidates, or -1; its share
                s1; its share s2; and [rows * length, 2]: those of the target (processor.package.item_rows);
                number, vectors, and the other state, as for gradients().

        Returns:
            The loss, its gradients by the sequence, by the candidates and by the weights [n], and the other state.
        """
        layout = self.rows
        sequence, candidates, raised, places, shares, order, count, *rest = given
        followed, (number, vectors, *other) = (rest[:4], rest[4:]) if layout.successors else ([], rest)
        weights = self._unpacked(vectors)
        with tf.GradientTape() as tape:
            tape.watch([sequence, candidates, *weights])
            states, after = self._states(sequence, weights, self._drawn(number, other), True)
            width = candidates.shape[1]
            users = tf.reshape(states, (-1, states.shape[2]))
            targets = tf.reshape(self._next_rows(sequence)[:, :, :width], (-1, width))
            lifts = self._lifts(users, targets, candidates, *followed) if followed else ()
            loss = softmax_loss(
                users[:, :width],
                targets,
                candidates,
                raised,
                tf.cast(places, tf.int32),
                shares,
                tf.cast(order, tf.int32),
                tf.cast(count[0], tf.int32),
                *lifts,
            )
        read = [sequence, candidates, *weights]
        by_sequence, by_candidates, *grads = tape.gradient(
            loss, read, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return [loss, by_sequence, by_candidates, tf.concat([tf.reshape(g, (-1,)) for g in grads], 0), *after]

    @property
    def rows(self) -> ItemRows:
        assert self._arch.next_item is not None
        return self._arch.next_item.rows

    def _lifts(
        self, users: Any, targets: Any, candidates: Any, places: Any, ones: Any, twos: Any, own: Any
    ) -> tuple[Any, Any, Any]:
        """Return the successors' places [t, s], what is added to their logits [t, s], and to the targets' [t]."""
        dim = self.rows.dim
        slots = tf.cast(places, tf.int32)
        popularity = tf.gather(candidates[:, dim], tf.maximum(slots, 0))
        weight, mixture = users[:, dim : dim + 1], tf.exp(users[:, dim + 1 :])

        def lift(s1: Any, s2: Any, popular: Any) -> Any:
            mixed = (mixture[:, :1] * s1 + mixture[:, 1:] * s2) * tf.sign(popular)
            return tf.math.log1p(mixed * tf.exp(-weight * (popular - LOG_FLOOR / SCALE)))

        of_targets = lift(own[:, :1], own[:, 1:], targets[:, dim : dim + 1])[:, 0]
        return slots, lift(ones, twos, popularity), of_targets

    def states(self, *given: Any) -> Tensors:
        """Return NextItem.states after each event but the last, of a sequence [rows, width] and the vectors [3, n]."""
        sequence, vectors = given
        return [self._states(sequence, self._unpacked(vectors), self._unused_state(), False)[0]]

    def _states(self, sequence: Any, weights: Tensors, other: Tensors, training: bool) -> tuple[Any, Tensors]:
        assert self._arch.next_item is not None
        return self._call(self._arch.next_item.states, self._served(sequence), weights, other, training)

    def _served(self, sequence: Any) -> Any:
        """Return the sequence without its last place, as served."""
        s, parts = self.sequence, []
        length = s.max_length - 1
        for c in s.columns:
            end = c.offset + c.dim * s.max_length
            parts += [sequence[:, c.offset : c.offset + c.dim * length], sequence[:, end : end + length]]
        if s.timed:
            parts.append(sequence[:, s.width - s.max_length : s.width - 1])
        return tf.concat(parts, 1)

    def _next_rows(self, sequence: Any) -> Any:
        """Return the item's row of each event but the first, [rows, length, d]."""
        s, item = self.sequence, self.item
        rows = sequence[:, item.offset + item.dim : item.offset + item.dim * s.max_length]
        return tf.reshape(rows, (-1, s.max_length - 1, item.dim))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def softmax_loss(
    states: Any,
    targets: Any,
    candidates: Any,
    raised: Any,
    places: Any,
    shares: Any,
    order: Any,
    count: Any,
    slots: Any = None,
    lifts: Any = None,
    own_lifts: Any = None,
) -> Any:
    """Return the weighted sum of the targets' cross-entropies, and a function of its gradients.

    Args:
        states: float32 [t, d], the user's vectors.
        targets: float32 [t, d], the targets' rows.
        candidates: float32 [m, d].
        raised: float32 [m], added to each candidate's logit.
        places: int32 [t], the target's place among the candidates, which is left out of its softmax there; or -1.
        shares: float32 [t], weights.
        order: int32 [t], numbers of targets, those with a weight first.
        count: int32, how many have a weight.
        slots: int32 [t, s], places among the candidates, or -1; None for none.
        lifts: float32 [t, s], added to the logits of these places.
        own_lifts: float32 [t], added to the targets' logits.
    """
    total, width = states.shape
    chunk = min(CHUNK, total)
    # The numbers that fill the last chunk are those of an additional row of weight 0.
    padded = -(-total // chunk) * chunk
    order = tf.pad(order, [[0, padded - total]], constant_values=total)
    rows, target_rows = (tf.pad(a, [[0, 1], [0, 0]]) for a in (states, targets))
    at, weight = tf.pad(places, [[0, 1]], constant_values=-1), tf.pad(shares, [[0, 1]])
    most_candidates = candidates.shape[0]
    numbers = tf.range(most_candidates)
    if slots is not None:
        # The place behind the candidates stands for none.
        slots = tf.where(slots < 0, most_candidates, slots)
        slots = tf.pad(slots, [[0, 1], [0, 0]], constant_values=most_candidates)
        lifted, own_lifted = tf.pad(lifts, [[0, 1], [0, 0]]), tf.pad(own_lifts, [[0, 1]])
        in_chunk = tf.repeat(tf.range(chunk)[:, None], slots.shape[1], axis=1)

    def more(first: Any, *_: Any) -> Any:
        return first < count

    def step(
        first: Any, loss: Any, by_states: Any, by_targets: Any, by_candidates: Any, *by_lifts: Any
    ) -> tuple[Any, ...]:
        numbers_now = tf.slice(order, [first], [chunk])
        u, v, share = tf.gather(rows, numbers_now), tf.gather(target_rows, numbers_now), tf.gather(weight, numbers_now)
        itself = tf.expand_dims(tf.gather(at, numbers_now), 1) == numbers
        logits, own = tf.matmul(u, candidates, transpose_b=True) + raised, tf.reduce_sum(u * v, axis=1)
        if by_lifts:
            at_slots = tf.stack([in_chunk, tf.gather(slots, numbers_now)], axis=2)
            sparse = tf.scatter_nd(at_slots, tf.gather(lifted, numbers_now), (chunk, most_candidates + 1))
            logits, own = logits + sparse[:, :-1], own + tf.gather(own_lifted, numbers_now)
        logits = tf.where(itself, NEVER, logits)
        most = tf.maximum(tf.reduce_max(logits, axis=1), own)
        powers, own_power = tf.exp(logits - tf.expand_dims(most, 1)), tf.exp(own - most)
        sums = tf.reduce_sum(powers, axis=1) + own_power
        losses = tf.math.log(sums) + most - own
        by_logits = powers * tf.expand_dims(share / sums, 1)
        by_own = tf.expand_dims((own_power / sums - 1.0) * share, 1)
        by_u = tf.matmul(by_logits, candidates) + by_own * v
        indices = tf.expand_dims(numbers_now, 1)
        if by_lifts:
            at_each = tf.gather_nd(tf.pad(by_logits, [[0, 0], [0, 1]]), at_slots)
            by_slots = tf.tensor_scatter_nd_update(by_lifts[0], indices, at_each)
            by_lifts = (by_slots, tf.tensor_scatter_nd_update(by_lifts[1], indices, by_own[:, 0]))
        return (
            first + chunk,
            loss + tf.reduce_sum(losses * share),
            tf.tensor_scatter_nd_update(by_states, indices, by_u),
            tf.tensor_scatter_nd_update(by_targets, indices, by_own * u),
            by_candidates + tf.matmul(by_logits, u, transpose_a=True),
            *by_lifts,
        )

    nothing = tf.zeros((total + 1, width))
    begun = (tf.constant(0), tf.constant(0.0), nothing, nothing, tf.zeros_like(candidates))
    no_lifts = () if slots is None else (tf.zeros_like(lifted), tf.zeros_like(own_lifted))
    _, loss, by_states, by_targets, by_candidates, *by_lifts = tf.while_loop(more, step, (*begun, *no_lifts))

    def gradient(by_loss: Any) -> tuple[Any, ...]:
        grads = (by_states[:total], by_targets[:total], by_candidates)
        of_lifts = [None, *(grad[:total] * by_loss for grad in by_lifts)] if by_lifts else []
        return (*(grad * by_loss for grad in grads), None, None, None, None, None, *of_lifts)

    return loss, gradient
