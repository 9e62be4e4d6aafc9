"""Several processes that learn together: rows of a batch and rows of tables shared out, the network in all of them.

ranks           processes by number, and messages between them
mpi_ranks       the same on MPI
batch_slices    a batch shared out
batch_ids       a process' distinct ids of a batch, by whose they are, with room for rows and gradients
id_kernels      its kernels, and that of who adds gradients up
number_wire     numbers on their way
rank_trainer    a process' share of a step
commands        what rank 0 tells all to do
gathered_table  a whole table, of rank 0's view
lead_trainer    rank 0's trainer, which a run takes for any other
rank_loop       the other ranks, from beginning to end
mpi_run         a process that MPI has started, in its role
liveness        who of the processes is there, and who went first
mpi_launch      `freshet train --processes`: starts them, and says how they ended
"""

__all__ = ["mpi_launch", "mpi_run"]
