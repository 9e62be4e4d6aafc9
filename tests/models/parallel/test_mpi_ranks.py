"""Messages on MPI, between processes that mpiexec starts; the same as between threads (test_ranks)."""

import pytest

from tests.models.parallel.starting import run_ranks

pytest.importorskip("mpi4py", reason="several processes need the mpi extra")

MESSAGES = """
import numpy as np
from freshet_serving.models.parallel import mpi_ranks
from freshet_serving.models.parallel.ranks import receive_arrays, send_arrays

mpi_ranks.PIECE_NBYTES = 1000
ranks = mpi_ranks.MpiRanks()
other = ranks.channel()
for nbytes in (0, 1, 47, 48, 49, 1000, 1001, 5000, 1 << 20):
    sent = [np.full(nbytes, 10 * ranks.rank + to, np.uint8) for to in range(ranks.size)]
    found = ranks.swap(sent)
    assert [m.tolist() for m in found] == [[10 * of + ranks.rank] * nbytes for of in range(ranks.size)]
    if ranks.rank == 0:
        for to in range(1, ranks.size):
            other.post(to, np.full(nbytes, to, np.uint8))
        for to in range(1, ranks.size):
            send_arrays(ranks, to, [np.arange(nbytes), np.zeros((0, 4), np.float32)])
    else:
        numbers, nothing = receive_arrays(ranks, 0)
        assert np.array_equal(numbers, np.arange(nbytes)) and nothing.shape == (0, 4)
        assert other.receive(0).tolist() == [ranks.rank] * nbytes
assert ranks.size == 1 or ranks.sent_nbytes > 1 << 20
ranks.end()
print("done", flush=True)
"""

FAILING = """
import numpy as np
from freshet_serving.models.parallel.mpi_ranks import MpiRanks
from freshet_serving.models.parallel.ranks import RankFailed

ranks = MpiRanks()
if ranks.rank == 1:
    ranks.fail("no more of this")
    ranks.fail("x" * 5000)
else:
    for wanted in ("no more of this", "x" * 2000):
        try:
            ranks.swap([np.zeros(5, np.uint8)] * ranks.size) if ranks.rank == 0 else ranks.receive(1)
        except RankFailed as failed:
            assert str(failed) == wanted
            print("heard", flush=True)
"""

CORES = """
import sys
from pathlib import Path

from freshet_serving.models.parallel.mpi_ranks import MpiRanks
from freshet_serving.processor.cores import available

ranks = MpiRanks()
ranks.share_cores()
Path(sys.argv[1], str(ranks.rank)).write_text(" ".join(map(str, sorted(available()))))
ranks.end()
"""


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_messages_of_any_length_arrive_in_order_per_channel(processes):
    status, out = run_ranks(processes, MESSAGES)
    assert (status, out.count("done")) == (0, processes), out


def test_rank_failure_reaches_all_waiting_ranks():
    _, out = run_ranks(2, FAILING)
    assert out.count("heard") == 2, out


def test_processes_of_a_machine_divide_its_cores(tmp_path):
    from freshet_serving.processor.cores import available

    cores = sorted(available())
    status, out = run_ranks(2, CORES, tmp_path)
    assert status == 0, out
    shares = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    if len(cores) >= 2:
        assert sorted(int(core) for share in shares for core in share) == cores
