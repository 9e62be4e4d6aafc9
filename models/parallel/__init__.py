"""Training over several processes: batch rows and table rows are sharded, the network is replicated.

ranks           processes by number, and messages between them
mpi_ranks       the same on MPI
batch_slices    splits a batch between processes
batch_ids       the distinct ids of a process's rows, grouped by owner, with room for rows and gradients
id_kernels      kernels that find distinct ids and sum gradients
number_wire     encodes rows and gradients for transport, as float32 or float16
rank_trainer    one process's share of a training step
commands        the operations that rank 0 sends to all ranks
gathered_table  rank 0's view of a whole sharded table
lead_trainer    rank 0's trainer, which a run uses like any other trainer
rank_loop       the main loop of the other ranks
mpi_run         the role of a process that MPI started
liveness        tracks local ranks and which one failed first
mpi_launch      `freshet train --processes`: starts the processes and reports how they ended
"""

__all__ = ["mpi_launch", "mpi_run"]
