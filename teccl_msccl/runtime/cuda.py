"""Programs executed by NVIDIA GPUs: all ranks on one of them, or one rank to a process, joined by CUDA IPC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError, Refused
from ..files import write_text
from ..program.program import RECEIVING, SENDING, Program
from .buffers import Layout, RankBuffers
from .cuda_tensors import Place, place_of
from .elements import DTYPES
from .measure import Timing
from .world import Answer, Case, Settings, Stall

if TYPE_CHECKING:
    from types import ModuleType

#: A tensor that is a rank's input and output at once, or the two of them.
RankTensors = Any


class StepTiming(NamedTuple):
    """When a step of the first iteration had all that it waited for, and when it was done, in µs from the first."""

    rank: int
    tb: int
    step: int
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Ran:
    """One run: `seconds` of the kernel, and, if measured, its `steps`; `slice_bytes` of a chunk moved at a time."""

    program: Program
    seconds: float
    slice_bytes: int
    steps: tuple[StepTiming, ...] = ()

    def point_to_point(self) -> list[Timing]:
        """Every message of the first iteration, from when its sender could begin until its receiver was done: what
        `topo calibrate` fits. Only of steps whose both ends were measured."""
        ends: dict[tuple[int, int, int], tuple[list[tuple[StepTiming, int]], list[StepTiming]]] = defaultdict(
            lambda: ([], [])
        )
        for timing in self.steps:
            block = self.program.gpus[timing.rank].threadblocks[timing.tb]
            step = block.steps[timing.step]
            if step.type in SENDING:
                ends[timing.rank, block.send, block.chan][0].append((timing, step.cnt * self.slice_bytes))
            if step.type in RECEIVING:
                ends[block.recv, timing.rank, block.chan][1].append(timing)
        return [
            Timing(src, dst, nbytes, max(taken.end_us - sent.begin_us, 1e-3))
            for (src, dst, _), (sends, receives) in sorted(ends.items())
            for (sent, nbytes), taken in zip(sends, receives, strict=False)
        ]

    def write_times(self, path: str | Path) -> None:
        """`point_to_point` as the CSV that `topo calibrate --from` reads."""
        rows = [f"{t.src},{t.dst},{t.nbytes},{t.time_us:.3f}" for t in self.point_to_point()]
        write_text(path, "\n".join(["src,dst,bytes,time_us", *rows]) + "\n")


def run(
    program: Program,
    tensors: Sequence[RankTensors] | RankTensors,
    *,
    op: str = "sum",
    root: int | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    stream: int = 0,
    measure: bool = False,
    rank: int | None = None,
    exchange: Callable[[bytes], Sequence[bytes]] | None = None,
) -> Ran:
    """Execute `program` on GPUs, on the contiguous `tensors` of any library that speaks DLPack or
    `__cuda_array_interface__`.

    Without `rank`, all ranks are virtual ones of the GPU that the tensors are on: one (input, output) pair for each
    rank, or one tensor for both, in place. With `rank`, this process has that rank and its pair (or tensor) only, on
    its own GPU of the same host; `exchange` gives everyone's bytes, in the order of ranks, to everyone (such as
    `torch.distributed.all_gather_object`). The kernel runs on `stream` (a cudaStream_t's address) and is waited for;
    `measure` times every step. `settings.timeout` is of one wait.

    Raises `InputError` where there is no GPU, or the tensors do not fit the program; `Refused` for a program with more
    threadblocks than the GPU holds at once, and `Stall`, naming threadblocks and steps, for one that hangs.
    """
    cuda = require_gpu()
    where = program.name
    layout = Layout.of(program, where)
    if (rank is None) != (exchange is None):
        raise InputError("rank and exchange go together: one process per GPU; leave both out for virtual ranks")
    if rank is not None and not 0 <= rank < program.nranks:
        raise InputError(f"rank {rank} is not one of {where}'s; use 0..{program.nranks - 1}")
    given: Mapping[int, RankTensors] = dict(enumerate(tensors)) if rank is None else {rank: tensors}
    if rank is None and len(given) != program.nranks:
        raise InputError(f"tensors for {len(given)} ranks, but {where} has {program.nranks}; give each its own")
    fitted = _Fitted.of(program, layout, {each: _pair(each, tensor) for each, tensor in given.items()})
    kernel = _kernel(
        cuda, program, where, settings, dtype=fitted.dtype, op=op, chunk_elements=fitted.chunk_elements,
        buffers=fitted.ranges(layout), root=-1 if root is None else root, rank=-1 if rank is None else rank,
        device=fitted.device, measure=measure,
    )  # fmt: skip
    try:
        if exchange is not None:
            kernel.connect(list(exchange(kernel.handle)))
        seconds, blocked = kernel.run(stream=stream, timeout=settings.timeout)
    except (cuda.CudaError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None
    if exchange is not None:
        exchange(b"done")  # until then a peer may still use the memory for messages that is here
    if blocked:
        raise Stall(settings.timeout, blocked)
    slot_elements = max(1, settings.slot_bytes_of(program) // DTYPES[fitted.dtype].bytes)
    slice_bytes = min(fitted.chunk_elements, slot_elements) * DTYPES[fitted.dtype].bytes
    return Ran(program, seconds, slice_bytes, tuple(StepTiming(*each) for each in kernel.times) if measure else ())


def require_gpu() -> ModuleType:
    """The compiled module. Raises `InputError`, with what to do, where it or a GPU is missing."""
    elsewhere = "teccl-msccl run executes programs without one"
    try:
        from .. import _cuda
    except ImportError:
        raise InputError(
            f"no GPU can be used: this build has no CUDA part (there was no nvcc); install with nvcc on the PATH, or "
            f"{elsewhere}"
        ) from None
    count, why = _cuda.gpus()
    if count == 0:
        raise InputError(f"no GPU can be used: {why}; use a machine with an NVIDIA GPU, or {elsewhere}")
    return _cuda


def _kernel(cuda: ModuleType, program: Program, where: str, settings: Settings, **rest: Any) -> Any:
    """The program on the GPU. Raises as `run` does."""
    try:
        return cuda.GpuRun(
            program.core, slots=settings.slots_of(program), slot_bytes=settings.slot_bytes_of(program), **rest
        )
    except cuda.TooManyBlocks as error:
        raise Refused(f"{where}: {error}; lower it with fewer --instances, or for fewer ranks") from None
    except (cuda.CudaError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None


def _pair(rank: int, tensors: RankTensors) -> tuple[Place, Place]:
    if isinstance(tensors, (tuple, list)):
        if len(tensors) != 2:
            raise InputError(f"rank {rank}: {len(tensors)} tensors; give one for both, or an input and an output")
        return place_of(tensors[0], f"rank {rank}'s input"), place_of(tensors[1], f"rank {rank}'s output")
    place = place_of(tensors, f"rank {rank}'s tensor")
    return place, place


@dataclass(frozen=True)
class _Fitted:
    """Tensors that fit a program: every rank's input and output, and the elements of a chunk."""

    places: Mapping[int, tuple[Place, Place]]
    in_place: bool
    dtype: str
    chunk_elements: int
    device: int

    @classmethod
    def of(cls, program: Program, layout: Layout, places: Mapping[int, tuple[Place, Place]]) -> _Fitted:
        everything = [place for pair in places.values() for place in pair]
        first = everything[0]
        modes = {pair[0] is pair[1] for pair in places.values()}
        if len(modes) > 1:
            raise InputError("some ranks have one tensor and some two; call in place or out of place on all of them")
        (in_place,) = modes
        if not (program.inplace if in_place else program.outofplace):
            mode = "in place" if in_place else "out of place"
            raise InputError(f"{program.name}: does not run {mode}; give {'two tensors' if in_place else 'one tensor'}")
        for place in everything:
            if place.device is None:
                raise InputError("a tensor is in the host's memory; move it to the GPU (tensor.cuda())")
            if (place.dtype, place.device) != (first.dtype, first.device):
                raise InputError("tensors of several types or GPUs; give all of one type, on one GPU")
        whole = max(layout.input_chunks, layout.output_chunks)
        chunks = (whole, whole) if in_place else (layout.input_chunks, layout.output_chunks)
        elements = first.elements // chunks[0]
        for rank, pair in places.items():
            for place, wanted, what in zip(pair, chunks, ("input", "output"), strict=True):
                if elements < 1 or place.elements != wanted * elements:
                    raise InputError(
                        f"rank {rank}'s {what} has {place.elements} elements; {program.name} needs a multiple of "
                        f"{wanted}, the same for every chunk"
                    )
        assert first.device is not None
        return cls(places, in_place, first.dtype.name, elements, first.device)

    def ranges(self, layout: Layout) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Address and bytes of every rank's input and output; those of other processes have no address."""
        chunk = self.chunk_elements * DTYPES[self.dtype].bytes
        sizes = layout.input_chunks * chunk, layout.output_chunks * chunk
        ranges = []
        for rank in range(layout.nranks):
            if rank not in self.places:
                ranges.append(((0, sizes[0]), (0, sizes[1])))
                continue
            i, o = (place.address for place in self.places[rank])
            if self.in_place:
                i, o = i + layout.input_offset(rank) * chunk, o + layout.output_offset(rank) * chunk
            ranges.append(((i, sizes[0]), (o, sizes[1])))
        return ranges


class CudaWorld:
    """A `World`: all ranks on one GPU, their buffers copied there and back."""

    transport = "one GPU"
    speaks = True
    processes_here = 1

    def __init__(self, nranks: int, device: int = 0) -> None:
        self._cuda = require_gpu()
        self.nranks, self._device = nranks, device
        self.local: Sequence[int] = range(nranks)

    def prepare(self, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings) -> CudaExecution:
        return CudaExecution(self._cuda, case, buffers, settings, self._device)

    def attempt(self, action: Callable[[], Answer]) -> Answer:
        return action()

    def share(self, text: str) -> list[str]:
        return [text]


class CudaExecution:
    """A case on the GPU: what is in the host's buffers goes there, and its result comes back."""

    def __init__(
        self, cuda: ModuleType, case: Case, buffers: Mapping[int, RankBuffers], settings: Settings, device: int
    ) -> None:
        if settings.injects:
            raise InputError("--inject is for threads and MPI; leave it out, or leave --cuda out")
        self._cuda, self._settings, self._where = cuda, settings, case.where
        chunk, layout = case.chunk_bytes, case.layout
        self._copies: list[tuple[Any, Any]] = []  # memory of the GPU, and of the host
        ranges = []
        try:
            for rank in range(case.program.nranks):
                mine, addresses = buffers[rank], []
                inputs, outputs = mine.input.nbytes, mine.output.nbytes
                if case.in_place:
                    shared = cuda.Memory(device, max(inputs, outputs))
                    larger = mine.input if inputs > outputs else mine.output
                    self._copies.append((shared, larger))
                    i, o = layout.input_offset(rank) * chunk, layout.output_offset(rank) * chunk
                    addresses = [shared.address + i, shared.address + o]
                else:
                    for array in (mine.input, mine.output):
                        self._copies.append((cuda.Memory(device, array.nbytes), array))
                        addresses.append(self._copies[-1][0].address)
                ranges.append(((addresses[0], inputs), (addresses[1], outputs)))
        except cuda.CudaError as error:
            raise InputError(f"{case.where}: {error}; choose a smaller --size") from None
        self._kernel = _kernel(
            cuda, case.program, case.where, settings, dtype=case.dtype.name, op=case.reduction,
            chunk_elements=case.chunk_elements, buffers=ranges, root=-1 if case.root is None else case.root,
            device=device,
        )  # fmt: skip

    @property
    def fifo_bytes(self) -> int:
        return 0  # of the host's memory

    def execute(self) -> float:
        try:
            for there, here in self._copies:
                there.upload(here)
            seconds, blocked = self._kernel.run(stream=0, timeout=self._settings.timeout)
            if blocked:
                raise Stall(self._settings.timeout, blocked)
            for there, here in self._copies:
                here[:] = there.download()[: here.nbytes]
        except self._cuda.CudaError as error:
            raise InputError(f"{self._where}: {error}") from None
        return float(seconds)

    def close(self) -> None:
        self._copies.clear()
        del self._kernel
