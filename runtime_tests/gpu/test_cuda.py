"""The kernel on a real GPU: against the reference for all collectives, types, reductions, protocols and sizes; stalls;
processes joined by CUDA IPC; and under compute-sanitizer."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
from multiprocessing.connection import Connection

import hand_made
import numpy as np
import pytest

from teccl_msccl.errors import InputError, Refused
from teccl_msccl.program.program import PROTOCOLS, Program, Step, Threadblock
from teccl_msccl.runtime import cuda
from teccl_msccl.runtime.elements import REDUCTIONS, dtypes_named
from teccl_msccl.runtime.root import root_of
from teccl_msccl.runtime.sweep import Sweep, measure
from teccl_msccl.runtime.world import Settings, Stall


def why_not() -> str:
    try:
        cuda.require_gpu()
    except InputError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Tensor:
    """A GPU's memory that other libraries would call a tensor."""

    def __init__(self, values: np.ndarray) -> None:
        self._memory = cuda.require_gpu().Memory(0, values.nbytes)
        self._memory.upload(values.view(np.uint8))
        self._dtype = values.dtype
        interface = {"data": (self._memory.address, False), "strides": None, "version": 3}
        self.__cuda_array_interface__ = interface | {"shape": values.shape, "typestr": values.dtype.str}

    def numpy(self) -> np.ndarray:
        return self._memory.download().view(self._dtype)


def assert_right(
    program: Program, sizes: tuple[int, ...], dtypes: str = "float", ops: tuple[str, ...] = ("sum",)
) -> None:
    reducing = program.collective in ("reduce", "allreduce", "reduce_scatter")
    sweep = Sweep(sizes, dtypes_named(dtypes, reducing), ops, iterations=2, warmup=0)
    world = cuda.CudaWorld(program.nranks)
    for case in sweep.cases(program, root_of(program, None, "program"), "program"):
        row = measure(world, case, sweep, Settings(timeout=10))
        assert row.wrong == row.out_of_bounds == 0, (case.dtype.name, case.reduction, case.size_bytes, case.in_place)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", hand_made.COLLECTIVES)
def test_every_collective_type_reduction_and_protocol(collective: str, protocol: str) -> None:
    program = hand_made.direct(collective, 4, k=2, root=1, protocol=protocol)
    assert_right(program, (1, 5000, 1_000_000), "all", tuple(REDUCTIONS))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
def test_rings_of_many_virtual_ranks_and_large_messages(collective: str, protocol: str) -> None:
    assert_right(hand_made.ring(collective, 8, 1, protocol), (100_000, 200_000_000))


def test_a_stall_names_threadblocks_and_steps() -> None:
    program = hand_made.both_receive_first()
    pairs = [(Tensor(np.zeros(1, np.float32)), Tensor(np.zeros(2, np.float32))) for _ in range(2)]
    with pytest.raises(Stall, match=r"rank 0 tb 0 step 0 \(r\) waits for a message from rank 1"):
        cuda.run(program, pairs, settings=Settings(timeout=0.2))
    assert_right(hand_made.ring("allreduce", 4), (4096,))  # the GPU is as good as before


def test_more_threadblocks_than_fit_are_refused() -> None:
    program = hand_made.ring("allgather", 2)
    gpus = list(program.gpus)
    crowd = tuple(Threadblock(-1, -1, 0, (Step("cpy", "i", 0, "o", 0),)) for _ in range(100_000))
    gpus[0] = type(gpus[0])(1, 2, 0, crowd)
    crowded = Program("crowded", "allgather", "Simple", 1, 2, True, True, (gpus[0], type(gpus[0])(1, 2, 0, ())))
    pairs = [(Tensor(np.zeros(1, np.float32)), Tensor(np.zeros(2, np.float32))) for _ in range(2)]
    with pytest.raises(Refused, match="100000 threadblocks must be on the GPU at once, and it holds"):
        cuda.run(crowded, pairs)


def test_measured_times_are_of_every_message() -> None:
    program = hand_made.ring("allgather", 3)
    pairs = [(Tensor(np.zeros(1000, np.float32)), Tensor(np.zeros(3000, np.float32))) for _ in range(3)]
    times = cuda.run(program, pairs, measure=True).point_to_point()
    assert len(times) == 6 and all(0 < t.time_us < 1e5 for t in times)


def one_rank(rank: int, pipe: Connection) -> None:
    """A process with one rank of an allreduce; what its peers say comes through the pipe."""

    def exchange(mine: bytes) -> list[bytes]:
        pipe.send(mine)
        return pipe.recv()

    tensor = Tensor(np.full(6000, rank + 1, np.float32))
    cuda.run(hand_made.ring("allreduce", 3), tensor, rank=rank, exchange=exchange, settings=Settings(timeout=60))
    pipe.send(tensor.numpy())


def test_processes_joined_by_ipc() -> None:
    """On one GPU, where their kernels take turns; on more GPUs only the device differs."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(3):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=one_rank, args=(rank, theirs), daemon=True))
        pipes.append(mine)
        processes[-1].start()
    for _ in ("handles", "done"):
        everyones = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(everyones)
    for pipe in pipes:
        assert pipe.poll(120)
        assert (pipe.recv() == 6).all()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_compute_sanitizer_is_clean(tool: str, tmp_path) -> None:
    hand_made.direct("allreduce", 3, k=2, protocol="LL128").write(tmp_path / "p.xml")
    command = [
        sys.executable,
        "-c",
        "from teccl_msccl.cli import main; main()",
        "run",
        str(tmp_path / "p.xml"),
        "--cuda",
    ]
    checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    done = subprocess.run([*checker, *command, "--size", "1KB", "-n", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
