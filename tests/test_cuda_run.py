"""`runtime.cuda`: tensors in, tensors out, through the kernel on the host in the GPU's place; and what is refused."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from types import ModuleType

import hand_made
import numpy as np
import pytest

import teccl_msccl
from teccl_msccl import _core
from teccl_msccl.cli import main
from teccl_msccl.errors import InputError, Refused
from teccl_msccl.runtime import cuda
from teccl_msccl.runtime.cuda_tensors import place_of
from teccl_msccl.runtime.elements import DTYPES
from teccl_msccl.runtime.world import Settings, Stall
from teccl_msccl.topology.measured import read_measurements
from teccl_msccl.topology.model import Topology


class OnGpu:
    """An array that says it is on a GPU, by `__cuda_array_interface__`."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__array_interface__


class StandIn(ModuleType):
    """`_cuda` with the kernel on the host: addresses are the host's. Holds `most` threadblocks."""

    class TooManyBlocks(RuntimeError): ...

    class CudaError(RuntimeError): ...

    most = 1000

    def gpus(self) -> tuple[int, str]:
        return 1, ""

    class Memory:
        def __init__(self, device: int, nbytes: int) -> None:
            self._bytes = np.zeros(nbytes, np.uint8)
            self.address, self.nbytes = self._bytes.ctypes.data, nbytes

        def upload(self, bytes: np.ndarray) -> None:
            self._bytes[: bytes.nbytes] = bytes

        def download(self) -> np.ndarray:
            return self._bytes.copy()

    class GpuRun:
        def __init__(self, program, *, buffers, chunk_elements, dtype, rank=-1, device=0, measure=False, **rest):
            if StandIn.most < 10:
                raise StandIn.TooManyBlocks(
                    f"12 threadblocks must be on the GPU at once, and it holds 1 × {StandIn.most}"
                )
            assert rank == -1 and device == 0

            def at(address: int, nbytes: int) -> np.ndarray:
                return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)

            scratch = np.zeros(64 * chunk_elements * DTYPES[dtype].bytes, np.uint8)
            arrays = [(at(*i), at(*o), scratch.copy()) for i, o in buffers]
            self.kernel = _core.HostKernel(program, buffers=arrays, chunk_elements=chunk_elements, dtype=dtype, **rest)

        def run(self, *, stream: int, timeout: float) -> tuple[float, list[str]]:
            return self.kernel.run(timeout=timeout)

        @property
        def times(self):
            return self.kernel.times


@pytest.fixture
def gpu(monkeypatch):
    module = StandIn("teccl_msccl._cuda")
    monkeypatch.setitem(sys.modules, "teccl_msccl._cuda", module)
    monkeypatch.setattr(teccl_msccl, "_cuda", module, raising=False)
    return module


def test_without_a_gpu_there_is_one_clear_line(monkeypatch, tmp_path, capsys) -> None:
    program = hand_made.ring("allreduce", 3)
    try:
        from teccl_msccl import _cuda

        if _cuda.gpus()[0]:
            pytest.skip("this machine has a GPU")
    except ImportError:
        pass
    with pytest.raises(InputError, match=r"^no GPU can be used: .*run executes programs without one"):
        cuda.run(program, [np.zeros(3, np.float32)] * 3)
    program.write(tmp_path / "p.xml")
    with pytest.raises(SystemExit) as stop:
        main(["run", str(tmp_path / "p.xml"), "--cuda"])
    assert stop.value.code == 2 and "no GPU can be used" in capsys.readouterr().err


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize("in_place", [False, True])
def test_tensors_of_virtual_ranks(gpu, collective, in_place) -> None:
    n, share = 3, 8
    program = hand_made.ring(collective, n)
    draw = np.random.default_rng(0)
    whole = [draw.integers(-9, 9, n * share).astype(np.float32) for _ in range(n)]
    inputs = [
        w[r * share : (r + 1) * share].copy() if collective == "allgather" else w.copy() for r, w in enumerate(whole)
    ]
    total = sum(whole)
    expected = {
        "allreduce": [total] * n,
        "allgather": [np.concatenate([w[r * share : (r + 1) * share] for r, w in enumerate(whole)])] * n,
        "reduce_scatter": [total[r * share : (r + 1) * share] for r in range(n)],
    }[collective]
    if in_place:
        buffers = [w.copy() for w in whole]
        cuda.run(program, [OnGpu(each) for each in buffers])
        results = [
            b[r * share : (r + 1) * share] if collective == "reduce_scatter" else b for r, b in enumerate(buffers)
        ]
    else:
        results = [np.zeros_like(each) for each in expected]
        ran = cuda.run(program, [(OnGpu(i), OnGpu(o)) for i, o in zip(inputs, results, strict=True)], op="sum")
        assert ran.seconds > 0 and ran.steps == ()
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_measured_steps_are_times_between_ranks(gpu, tmp_path) -> None:
    program = hand_made.ring("allgather", 3)
    pairs = [(OnGpu(np.zeros(100, np.float32)), OnGpu(np.zeros(300, np.float32))) for _ in range(3)]
    ran = cuda.run(program, pairs, measure=True)
    times = ran.point_to_point()
    assert {(t.src, t.dst) for t in times} == {(0, 1), (1, 2), (2, 0)} and len(times) == 6
    assert all(t.nbytes == 400 and t.time_us > 0 for t in times)
    ran.write_times(tmp_path / "times.csv")
    read = read_measurements(tmp_path / "times.csv", Topology.load("ring-3"))
    assert [(m.src, m.dst, m.nbytes) for m in read] == [(t.src, t.dst, t.nbytes) for t in times]


def test_more_threadblocks_than_the_gpu_holds_and_stalls(gpu, monkeypatch) -> None:
    tensors = [OnGpu(np.zeros(3, np.float32)) for _ in range(3)]
    monkeypatch.setattr(StandIn, "most", 4)
    with pytest.raises(Refused, match=r"12 threadblocks must be .* holds 1 × 4; lower it with fewer --instances"):
        cuda.run(hand_made.ring("allreduce", 3), tensors)


def test_a_hang_is_a_stall(gpu) -> None:
    program = hand_made.both_receive_first()
    pairs = [(OnGpu(np.zeros(1, np.float32)), OnGpu(np.zeros(2, np.float32))) for _ in range(2)]
    with pytest.raises(Stall, match="rank 0 tb 0 step 0"):
        cuda.run(program, pairs, settings=Settings(timeout=0.05))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (lambda a: [a(3), a(3)], "tensors for 2 ranks, but .* has 3"),
        (lambda a: [a(3), a(3), a(4)], "rank 2's input has 4 elements; .* needs a multiple of 3"),
        (lambda a: [a(3), (a(3), a(3)), a(3)], "some ranks have one tensor and some two"),
        (lambda a: [(a(3), a(3), a(3))] * 3, "3 tensors; give one for both"),
        (lambda a: [a(3), a(3), OnGpu(np.zeros(3, np.int32))], "several types"),
        (lambda a: [np.zeros(3, np.float32)] * 3, "host's memory"),
        (lambda a: [a(3), a(3), 7], "int is no tensor"),
        (lambda a: [OnGpu(np.zeros(3, np.complex64))] * 3, "<c8"),
        (lambda a: [OnGpu(np.zeros(6, np.float32)[::2])] * 3, "not contiguous"),
    ],
)
def test_tensors_that_do_not_fit_are_one_line(gpu, tensors, said) -> None:
    with pytest.raises(InputError, match=said):
        cuda.run(hand_made.ring("allreduce", 3), tensors(lambda n: OnGpu(np.zeros(n, np.float32))))


def test_modes_and_ranks_that_do_not_fit(gpu) -> None:
    program = dataclasses.replace(hand_made.ring("allreduce", 3), inplace=False)
    tensors = [OnGpu(np.zeros(3, np.float32)) for _ in range(3)]
    with pytest.raises(InputError, match="does not run in place; give two tensors"):
        cuda.run(program, tensors)
    with pytest.raises(InputError, match="rank and exchange go together"):
        cuda.run(program, tensors[0], rank=0)
    with pytest.raises(InputError, match="rank 3 is not one"):
        cuda.run(program, tensors[0], rank=3, exchange=lambda mine: [mine])


def test_the_command_runs_on_the_gpu(gpu, tmp_path, capsys) -> None:
    hand_made.ring("reduce_scatter", 3).write(tmp_path / "p.xml")
    with pytest.raises(SystemExit) as stop:
        main(["run", str(tmp_path / "p.xml"), "--cuda", "--size", "1KB", "--dtype", "half,int8", "--iters", "1"])
    out = capsys.readouterr()
    assert not stop.value.code and "(one GPU)" in out.out and "Out of bounds values : 0 OK" in out.out, out


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "float64"])
def test_dlpack_is_read_without_its_library(dtype) -> None:
    array = np.arange(24, dtype=dtype).reshape(2, 3, 4)[1:]
    place = place_of(array, "array")
    assert (place.address, place.elements, place.device) == (array.ctypes.data, 12, None)
    assert place.dtype.storage == array.dtype and place.nbytes == array.nbytes
    with pytest.raises(InputError, match=r"not contiguous; give tensor\.contiguous"):
        place_of(array[..., ::2], "array")
    with pytest.raises(InputError, match="cannot be shared"):
        array.flags.writeable = False
        place_of(array, "array")
