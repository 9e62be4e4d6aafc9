"""Ranks in one process, a thread each."""

import queue
import threading

import numpy as np

from freshet_serving.models.parallel.ranks import RankFailed, as_bytes

PATIENCE_S = 120


class ThreadRanks:
    """One of several; all of them share boxes, one for each pair."""

    def __init__(self, rank, size, boxes):
        self.rank, self.size, self.boxes, self.sent_nbytes = rank, size, boxes, 0

    def send(self, to, message):
        copy = np.array(as_bytes(message))
        self.sent_nbytes += len(copy)
        self.boxes[self.rank, to].put(copy)

    post = send

    def receive(self, of):
        message = self.boxes[of, self.rank].get(timeout=PATIENCE_S)
        if isinstance(message, str):
            raise RankFailed(message)
        return message

    def swap(self, messages):
        for to in range(self.size):
            if to != self.rank:
                self.send(to, messages[to])
        others = {of: self.receive(of) for of in range(self.size) if of != self.rank}
        return [as_bytes(messages[self.rank]) if of == self.rank else others[of] for of in range(self.size)]

    def fail(self, line):
        for to in range(self.size):
            if to != self.rank:
                self.boxes[self.rank, to].put(line)


def thread_ranks(size):
    """A channel between so many, by rank."""
    boxes = {(a, b): queue.SimpleQueue() for a in range(size) for b in range(size)}
    return [ThreadRanks(rank, size, boxes) for rank in range(size)]


def on_each(ranks, work):
    """work(rank's channel) in a thread each; the results by rank. Raises what the first of them raised."""
    results, errors = [None] * len(ranks), [None] * len(ranks)

    def run(n):
        try:
            results[n] = work(ranks[n])
        except BaseException as error:
            errors[n] = error
            ranks[n].fail(str(error))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None and not isinstance(error, RankFailed):
            raise error
    return results


class Together:
    """Rank 0's trainer of a configuration beside the other ranks, each in a thread; a context manager."""

    def __init__(self, size, *arguments, **named):
        """arguments: of Trainer."""
        from freshet_serving.models.parallel.rank_loop import LeadTrainerFactory, serve

        ranks, batches = thread_ranks(size), thread_ranks(size)
        self._errors = []

        def work(n):
            try:
                serve(ranks[n], batches[n])
            except Exception as error:
                self._errors.append(error)

        self._threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(1, size)]
        for thread in self._threads:
            thread.start()
        self._lead = LeadTrainerFactory(ranks[0], batches[0])
        self.trainer = self._lead(*arguments, **named)

    def __enter__(self):
        return self.trainer

    def __exit__(self, kind, error, trace):
        self._lead.close(str(error or kind.__name__) if kind else "")
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert kind or not self._errors, self._errors
