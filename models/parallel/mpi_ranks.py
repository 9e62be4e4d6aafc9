"""Message channels on MPI: MPICH, or any other MPI that mpi4py finds.

A message is a head of 64 bytes with room for a short payload, then pieces of at most PIECE_NBYTES, because MPI counts
in 32 bits. All requests are non-blocking and waiting is done here: MPI's own wait spins, which takes cores from threads
that read ahead and from the process it waits for. A wait spins and yields for SPIN_S, in which most messages arrive,
then sleeps a twentieth of the time waited so far, at most PAUSE_S.

Several threads call MPI, each on its own channel (MPI_THREAD_MULTIPLE).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import mpi4py
import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.parallel.ranks import Array, Bytes, RankFailed, as_bytes
from freshet_serving.processor.cores import MAX_CPU, available, run_on
from freshet_serving.processor.errors import BadInput

# A process that failed exits without MPI_Finalize, which would wait for the others.
mpi4py.rc.finalize = False
from mpi4py import MPI  # noqa: E402

PIECE_NBYTES = 1 << 30
HEAD_WORDS = 8
SHORT_NBYTES = 8 * (HEAD_WORDS - 2)
SPIN_S, PAUSE_S, PAUSES = 0.0005, 0.002, 20
WHOLE, FAILED = 0, 1
MOST_TOLD = 2000


class MpiRanks:
    """A channel between all processes of a communicator."""

    def __init__(self, comm: Any = None) -> None:
        """Open a channel of an mpi4py communicator, by default of all processes."""
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise BadInput("MPI: expected a library that several threads may call (MPI_THREAD_MULTIPLE)")
        self._comm = (comm or MPI.COMM_WORLD).Dup()
        self.rank, self.size, self.sent_nbytes = self._comm.rank, self._comm.size, 0
        self._posted: list[tuple[Any, Any]] = []

    def channel(self) -> MpiRanks:
        """Open another channel between the same processes. Collective."""
        return MpiRanks(self._comm)

    def share_cores(self) -> None:
        """Bind this process to its share of the cores if several on one machine may use the same; at least one core."""
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        mask, masks = np.zeros(MAX_CPU // 8, np.uint8), np.empty((local.size, MAX_CPU // 8), np.uint8)
        cores = sorted(available())
        mask[:] = np.packbits(np.isin(np.arange(MAX_CPU), cores))
        local.Allgather(mask, masks)
        if local.size > 1 and (masks == mask).all():
            first, last = (len(cores) * n // local.size for n in (local.rank, local.rank + 1))
            run_on(frozenset(cores[first:last] or [cores[local.rank % len(cores)]]))

    def end(self) -> None:
        """Finalize MPI. Collective."""
        _wait(lambda: MPI.Request.Testall([request for request, _ in self._posted]))
        MPI.Finalize()

    def send(self, to: int, message: Array) -> None:
        started = self._start(to, as_bytes(message))
        _wait(lambda: MPI.Request.Testall([request for request, _ in started]))

    def post(self, to: int, message: Array) -> None:
        self._posted = [(request, memory) for request, memory in self._posted if not request.Test()]
        self._posted += self._start(to, as_bytes(message))

    def receive(self, of: int) -> Bytes:
        return self._message(of, *self._ask(of))

    def swap(self, messages: Sequence[Array]) -> list[Bytes]:
        # Each rank begins with a different peer.
        others = [(self.rank + n) % self.size for n in range(1, self.size)]
        asked = {of: self._ask(of) for of in others}
        started = [pair for to in others for pair in self._start(to, as_bytes(messages[to]))]
        received = {of: self._message(of, *asked[of]) for of in others} | {self.rank: as_bytes(messages[self.rank])}
        _wait(lambda: MPI.Request.Testall([request for request, _ in started]))
        return [received[of] for of in range(self.size)]

    def fail(self, line: str) -> None:
        message = line.encode()[:MOST_TOLD]
        for to in range(self.size):
            if to != self.rank:
                self._posted += self._start(to, np.frombuffer(message, np.uint8), FAILED)

    def _start(self, to: int, message: Bytes, status: int = WHOLE) -> list[tuple[Any, Any]]:
        """Start sending a message; return the requests with the memory that they read."""
        head = np.zeros(HEAD_WORDS, np.int64)
        head[:2] = status, len(message)
        self.sent_nbytes += head.nbytes
        if len(message) <= SHORT_NBYTES:
            head[2:].view(np.uint8)[: len(message)] = message
            return [(self._comm.Isend([head, MPI.BYTE], to), head)]
        started: list[tuple[Any, Any]] = [(self._comm.Isend([head, MPI.BYTE], to), head)]
        for first in range(0, len(message), PIECE_NBYTES):
            piece = message[first : first + PIECE_NBYTES]
            started.append((self._comm.Isend([piece, MPI.BYTE], to), piece))
        self.sent_nbytes += len(message)
        return started

    def _ask(self, of: int) -> tuple[Any, NDArray[np.int64]]:
        head = np.empty(HEAD_WORDS, np.int64)
        return self._comm.Irecv([head, MPI.BYTE], of), head

    def _message(self, of: int, asked: Any, head: NDArray[np.int64]) -> Bytes:
        _wait(asked.Test)
        status, nbytes = head[:2].tolist()
        message = head[2:].view(np.uint8)[:nbytes]
        if nbytes > SHORT_NBYTES:
            message = np.empty(nbytes, np.uint8)
            pieces = [message[first : first + PIECE_NBYTES] for first in range(0, nbytes, PIECE_NBYTES)]
            requests = [self._comm.Irecv([piece, MPI.BYTE], of) for piece in pieces]
            _wait(lambda: MPI.Request.Testall(requests))
        if status == FAILED:
            raise RankFailed(message.tobytes().decode(errors="replace"))
        return message


def _wait(done: Callable[[], bool]) -> None:
    if done():
        return
    began_s = time.perf_counter()
    while not done():
        waited_s = time.perf_counter() - began_s
        if waited_s < SPIN_S:
            os.sched_yield()
        else:
            time.sleep(min(PAUSE_S, waited_s / PAUSES))
