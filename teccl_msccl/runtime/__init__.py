"""Execution of programs on real data: ranks as threads of this process or as MPI processes, every result checked.

`sweep.measure` runs one case in a `World` (`threads.ThreadWorld`, `mpi.MpiWorld`); `launch.join` finds the world
that the process was started in; `table` prints what nccl-tests would.
"""
