"""Targets and results of executing programs: `python benchmarks/execution.py`.

Ratios are medians over rounds in which both ways run in turn, so that both meet the same machine. Under mpirun this
file runs itself: the ring program and a plain MPI_Sendrecv ring alternate inside one job.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))  # hand_made.py

MESSAGE_BYTES = 512 * 1024
SIZE_BYTES = 64 * 1024 * 1024
ROUNDS = 15


def threads_copy() -> bool:
    """Two ranks against two plain threads: the C++ driver, compiled here."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        print("threads, 2-rank copy: no C++ compiler; set CXX")
        return False
    source = HERE.parent / "csrc"
    parts = [
        *source.glob("interpreter*.cpp"),
        *(source / f"{name}.cpp" for name in ("program", "element", "injection")),
    ]
    with tempfile.TemporaryDirectory() as directory:
        driver = Path(directory) / "copy"
        subprocess.run(
            [
                compiler,
                "-std=c++17",
                "-O3",
                f"-I{source}",
                HERE / "interpreter_copy.cpp",
                *parts,
                "-pthread",
                "-o",
                driver,
            ],
            check=True,
        )
        said = subprocess.run([driver], capture_output=True, text=True, check=True, timeout=300).stdout.strip()
    percent = float(said.split(":")[1].split("%")[0])
    return told("threads, 2-rank 256 MiB copy", "≥ 60 % of two plain threads", said, percent >= 60)


def many_ranks() -> bool:
    """64 ranks' allgather of 64 KB, every element compared."""
    import hand_made

    from teccl_msccl.runtime.elements import DTYPES
    from teccl_msccl.runtime.sweep import Sweep, measure
    from teccl_msccl.runtime.threads import ThreadWorld
    from teccl_msccl.runtime.world import Settings

    program = hand_made.ring("allgather", 64)
    began = time.monotonic()
    sweep = Sweep((64_000,), (DTYPES["float"],), ("sum",))
    rows = [measure(ThreadWorld(64), case, sweep, Settings()) for case in sweep.cases(program, None, "allgather")]
    seconds = time.monotonic() - began
    wrong = sum(row.wrong for row in rows)
    result = f"{seconds:.2f} s, {wrong} wrong elements"
    return told("threads, 64-rank allgather of 64 KB", "≤ 20 s, verified", result, seconds <= 20 and wrong == 0)


def over_mpi(nranks: int, target: float | None) -> bool:
    """The allgather ring on `nranks` processes against MPI_Sendrecv."""
    what = f"mpi, {nranks}-rank ring allgather of {SIZE_BYTES >> 20} MiB"
    mpirun = shutil.which("ompirun_wrapper") or shutil.which("mpirun")
    if mpirun is None:
        print(f"{what}: mpirun is missing; pip install 'teccl-msccl[mpi]'")
        return False
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), environment.get("PYTHONPATH", "")])
    if mpirun.endswith("wrapper"):  # where MPICH's wheel has replaced Open MPI's mpirun
        environment["OPAL_PREFIX"] = sys.prefix
    done = subprocess.run(
        [mpirun, "--oversubscribe", "-np", str(nranks), sys.executable, __file__, "--rank"],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode:
        print(f"{what}: failed: {done.stderr.strip()}")
        return False
    plain, ours, ratio = (float(word) for word in done.stdout.split())
    result = f"plain {plain:.2f} GB/s, program {ours:.2f} GB/s: {ratio:.0%}"
    wanted = "reported" if target is None else f"≥ {target:.0%} of MPI_Sendrecv"
    return told(what, wanted, result, target is None or ratio >= target)


def told(what: str, target: str, result: str, good: bool) -> bool:
    print(f"{what:40} {target:28} {'ok' if good else 'MISSED':7} {result}", flush=True)
    return good


def as_rank() -> None:
    """One process of `over_mpi`: rank 0 prints the median bandwidths and the median of the rounds' ratios."""
    import hand_made

    from teccl_msccl.runtime.buffers import Layout, RankBuffers
    from teccl_msccl.runtime.elements import DTYPES
    from teccl_msccl.runtime.launch import join, launched
    from teccl_msccl.runtime.world import Case, Settings

    launch = launched()
    assert launch is not None
    with join(launch) as world:
        comm, rank, n = world.comm, world.rank, world.nranks
        program = hand_made.ring("allgather", n)
        layout = Layout.of(program, "ring")
        case = Case(program, "ring", layout, DTYPES["uint8"], "sum", SIZE_BYTES // n, True, None)
        buffers = RankBuffers(layout, rank, 0, case.chunk_bytes, in_place=True)
        buffers.output[:] = rank
        execution = world.prepare(case, {rank: buffers}, Settings())
        whole = np.full((n, case.chunk_bytes), rank, np.uint8)

        def plain() -> float:
            comm.Barrier()
            start = time.perf_counter()
            for hop in range(n - 1):
                sent, taken = whole[(rank - hop) % n], whole[(rank - hop - 1) % n]
                for at in range(0, case.chunk_bytes, MESSAGE_BYTES):
                    piece = slice(at, at + MESSAGE_BYTES)
                    comm.Sendrecv(sent[piece], (rank + 1) % n, 0, taken[piece], (rank - 1) % n, 0)
            return time.perf_counter() - start

        pairs = [(plain(), execution.execute()) for _ in range(ROUNDS + 2)][2:]
        execution.close()
        assert (buffers.output.reshape(n, -1) == np.arange(n)[:, None]).all() and (
            whole == buffers.output.reshape(n, -1)
        ).all()
        slowest = [tuple(comm.allreduce(seconds, world.MPI.MAX) for seconds in pair) for pair in pairs]
        if world.speaks:
            rates = [
                statistics.median(SIZE_BYTES / seconds / 1e9 for seconds in each) for each in zip(*slowest, strict=True)
            ]
            print(*rates, statistics.median(theirs / ours for theirs, ours in slowest))


def main() -> int:
    """Print every target and result; 1 if one was missed."""
    print(f"{os.cpu_count()} cores")
    good = [threads_copy(), many_ranks(), over_mpi(2, 0.5), over_mpi(4, None)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        as_rank()
    else:
        sys.exit(main())
