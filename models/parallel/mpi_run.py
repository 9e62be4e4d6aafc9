"""Run a process that MPI started in its role: rank 0 trains, as `freshet train` does; the others serve its commands.

Only rank 0 writes to the terminal, and it ends with the run's status: other ranks report errors to it, and do not end
before it (models.parallel.rank_loop).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from freshet_serving.models.parallel.liveness import SOCKET, LivenessClient
from freshet_serving.models.parallel.ranks import RankFailed
from freshet_serving.processor.errors import BadInput, FreshetError

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
OTHERS = 1
"""Exit status of errors without an exit_code of Freshet."""
ENDED_S = 60.0
"""Seconds a failed rank waits to be ended, after rank 0 has reported the reason."""


def started_by_mpi() -> bool:
    return any(os.environ.get(name, "1") != "1" for name in SIZES)


def refuse_processes(processes: int) -> None:
    """Raise BadInput for --processes under an external mpirun; other ranks than 0 exit silently."""
    if processes == 1 or SOCKET in os.environ or not started_by_mpi():
        return
    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        sys.exit(0)
    size = next(os.environ[name] for name in SIZES if name in os.environ)
    raise BadInput(f"--processes: not allowed under mpirun, which started {size[:9]}, got {processes}")


def take_part(train: Callable[[Callable[..., object] | None], None]) -> None:
    """Run this process's role to its end.

    `train` runs rank 0's training with a factory called like Trainer(), or None for a single process.
    """
    from freshet_serving.models.parallel.mpi_ranks import MpiRanks

    ranks = MpiRanks()
    present = LivenessClient(ranks.rank)
    if ranks.size == 1:
        train(None)
        return
    batches = ranks.channel()
    ranks.share_cores()
    from freshet_serving.models.parallel.rank_loop import LeadTrainerFactory, serve

    if ranks.rank:
        _mute()
        try:
            serve(ranks, batches)
        except RankFailed:
            time.sleep(ENDED_S)
            sys.exit(2)
    else:
        lead = LeadTrainerFactory(ranks, batches)
        try:
            train(lead)
        except BaseException as error:
            present.failing(error.exit_code if isinstance(error, FreshetError) else OTHERS)
            lead.close(str(error) or type(error).__name__)
            raise
        lead.close()
    ranks.end()
    present.close()


def _mute() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(nowhere, stream)
