"""A process that MPI has started, in its role: rank 0 trains, as `freshet train` does, the others do their duties.

Only rank 0 writes to the terminal. It ends with the run's own status: a rank that could not go on has told it why, and
it says so in one line. No other rank ends before it (models.parallel.rank_loop).
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
OURS, OTHERS = 2, 1
"""The statuses of a command that ends with an error of ours, in one line, or with any other."""
ENDED_S = 60.0
"""By then rank 0 has said why, and MPI has ended whoever is left."""


def started_by_mpi() -> bool:
    """Whether this is one of several."""
    return any(os.environ.get(name, "1") != "1" for name in SIZES)


def refuse_processes(processes: int) -> None:
    """Raises BadInput where somebody else's mpirun started this command and it is to start processes of its own; the
    other ranks end without a word."""
    if processes == 1 or SOCKET in os.environ or not started_by_mpi():
        return
    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        sys.exit(0)
    size = next(os.environ[name] for name in SIZES if name in os.environ)
    raise BadInput(f"--processes: none wanted below mpirun, which has started {size[:9]}, got {processes}")


def take_part(train: Callable[[Callable[..., object] | None], None]) -> None:
    """Does what this process is to do; train(make): of rank 0, where make is what makes its trainer, as Trainer() does.
    None where it is alone."""
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
            present.failing(OURS if isinstance(error, FreshetError) else OTHERS)
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
