"""`python -m tests.serving.workers.reading FD`: a process that reads one version as fast as it can, over a channel.

It acts on open, frame, forget, meet and end as a worker does, on a thread of its own, while three readers pin, gather
every user's row and compare: all of one content, and that of the generation which the state names. At the end it says
of how many generations it has read batches, and the first that was not whole.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

import numpy as np

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.serving.workers.array_packing import ArrayUnpacker
from freshet_serving.serving.workers.channel import Channel
from freshet_serving.serving.workers.frame_transfer import FrameReceiver
from tests.support.packages import DIM, make_inputs, row_of

READERS = 3
ROWS = 16


class Reading:
    def __init__(self, users: int) -> None:
        self.users = users
        self.receiver: FrameReceiver | None = None
        self.stop = threading.Event()
        self.batches = 0
        self.generations: set[str] = set()
        self.problems: list[str] = []
        self.threads = [threading.Thread(target=self.read, args=(n,)) for n in range(READERS)]

    def read(self, reader: int) -> None:
        assert self.receiver is not None
        replica = self.receiver.replica
        inputs = make_inputs(range(self.users), tags=[[]] * self.users)
        bound, spans = replica.plan.bind_inputs(inputs), np.array([[0, self.users]])
        x, counts = np.zeros((self.users, replica.plan.width), np.float32), np.zeros((2, 2), np.int64)
        base = np.array([row_of(user, 0) for user in range(self.users)])
        while not self.stop.is_set() and not self.problems:
            with replica.pinned(reader) as state:
                replica.plan.fill(BatchView(state.tables, state.epoch, [bound], spans, counts), x)
                generation = state.generation
            # A row of content n is that of content 0 plus n / 16: tests.support.packages.row_of.
            contents = (x[:, :DIM] - base) * 16
            if not (np.abs(contents - generation.step % 97) < 1e-3).all():
                self.problems.append(f"{generation}: {contents[:, 0].tolist()}")
            self.batches += 1
            self.generations.add(str(generation))


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    reading = Reading(int(sys.argv[2]))
    while True:
        received = channel.receive()
        assert received is not None
        message, fds = received
        with ArrayUnpacker(fds) as unpacker:
            if message["op"] == "open":
                reading.receiver = FrameReceiver(message, unpacker, lambda model: GroupOptions(), SystemClock())
            elif message["op"] == "frame":
                assert reading.receiver is not None
                reading.receiver.prepare(message, unpacker)
            elif message["op"] == "start":
                for thread in reading.threads:
                    thread.start()
            elif message["op"] == "meet":
                # Each reader may be in a batch that it began before.
                met = reading.batches + READERS + 1
                while reading.batches < met and not reading.problems:
                    time.sleep(0.001)
            elif message["op"] == "forget":
                assert reading.receiver is not None
                reading.receiver.replica.forget(message["frame"])
            else:
                break
        channel.send({"op": "done"})
    reading.stop.set()
    for thread in reading.threads:
        thread.join()
    channel.send({"generations": len(reading.generations), "problems": reading.problems[:1]})


if __name__ == "__main__":
    main()
