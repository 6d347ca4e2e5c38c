"""Executing a program over sizes, element types, reductions and modes, every result checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..collective.demand import REDUCING
from ..errors import InputError, Refused
from ..program.program import Program
from ..program.targets import target_named
from .buffers import Layout, RankBuffers, require_memory, scratch_chunks
from .elements import Dtype
from .path import Hop, path_to
from .reference import Mismatch, Reference, first_mismatch
from .world import Case, Execution, Settings, World

MODES = ("out-of-place", "in-place")


@dataclass(frozen=True)
class Row:
    """One case's result. `size` is in bytes and `count` in elements, as nccl-tests counts them; `time_us` is the
    mean of the timed runs on the slowest rank; bandwidths are in GB/s (10⁹); `first_wrong` names a wrong element."""

    size: int
    count: int
    dtype: str
    op: str
    root: int
    mode: str
    time_us: float
    algbw: float
    busbw: float
    wrong: int
    out_of_bounds: int = 0
    first_wrong: WrongElement | None = None

    def to_json(self) -> dict[str, Any]:
        """The design's JSON form."""
        keys = ("size", "count", "dtype", "op", "mode", "time_us", "algbw", "busbw", "wrong")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Sweep:
    """What to execute: sizes in bytes, and how often. `exact` refuses a size that is not whole chunks of elements;
    otherwise it is rounded up."""

    sizes: Sequence[int]
    dtypes: Sequence[Dtype]
    reductions: Sequence[str]
    iterations: int = 5
    warmup: int = 1
    exact: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= 10**6 or not 0 <= self.warmup <= 10**6:
            raise InputError(f"iters {self.iterations}, warmup {self.warmup}; use 1 or more, and 0 or more")

    def cases(self, program: Program, root: int | None, where: str) -> Iterator[Case]:
        """The cases in the table's order. Raises `Refused` for a size that does not divide, if `exact`."""
        layout = Layout.of(program, where)
        reductions = self.reductions if program.collective in REDUCING else ("sum",)
        for dtype in self.dtypes:
            for reduction in reductions:
                for size in self.sizes:
                    unit = layout.nchunks * dtype.bytes
                    if self.exact and size % unit:
                        raise Refused(
                            f"{where}: {size} bytes are not whole chunks: {layout.nchunks} chunks of {dtype.name} "
                            f"take multiples of {unit} bytes; choose one, or leave --exact out to round up"
                        )
                    for in_place in modes(program, where):
                        yield Case(program, where, layout, dtype, reduction, -(-size // unit), in_place, root)


def modes(program: Program, where: str) -> tuple[bool, ...]:
    """Whether to run in place: the modes that the file claims, as its target takes them. Raises `InputError` if it
    claims neither."""
    inplace, outofplace = target_named(program.target).modes(program.inplace, program.outofplace)
    claimed = tuple(mode for mode, claims in ((False, outofplace), (True, inplace)) if claims)
    if not claimed:
        raise InputError(f"{where}: claims neither inplace nor outofplace; set one of them to 1")
    return claimed


def measure(world: World, case: Case, sweep: Sweep, settings: Settings) -> Row:
    """Execute `case` in `world`: once on fresh data, which is checked (with injected faults, `iterations` times, of
    which the worst counts), then `warmup` and timed runs.

    Raises `InputError` for a program that cannot be executed safely or buffers that don't fit, `Stall` for one
    that hangs. Wrong elements are in the row.
    """
    if case.chunk_elements == 0:
        return _row(case, Verdict())
    buffers, execution = world.attempt(lambda: _ready(world, case, settings))
    reference = Reference(case.layout, case.chunk_elements, case.dtype, case.reduction, case.root)

    def checked_run() -> list[tuple[int, Mismatch | None]]:
        for rank in world.local:
            fill(buffers[rank], reference, rank)
        execution.execute()
        return [check(buffers[rank], reference, rank, case.in_place) for rank in world.local]

    # Every run meets other faults.
    runs = [checked_run() for _ in range(sweep.iterations if settings.injects else 1)]
    checked = max(runs, key=lambda run: sum(count for count, _ in run))
    for _ in range(sweep.warmup):
        execution.execute()
    seconds = sum(execution.execute() for _ in range(sweep.iterations)) / sweep.iterations
    execution.close()

    mine = Verdict(
        wrong=sum(count for count, _ in checked),
        overrun=sum(buffers[rank].overrun() for rank in world.local),
        seconds=seconds,
        first=next((mismatch for _, mismatch in checked if mismatch), None),
    )
    everyone = [Verdict.of(text) for text in world.share(json.dumps(asdict(mine)))]
    return _row(
        case,
        Verdict(
            wrong=sum(verdict.wrong for verdict in everyone),
            overrun=sum(verdict.overrun for verdict in everyone),
            seconds=max(verdict.seconds for verdict in everyone),
            first=next((verdict.first for verdict in everyone if verdict.first), None),
        ),
    )


@dataclass(frozen=True)
class Verdict:
    """What a process, or all of them, found in one case."""

    wrong: int = 0
    overrun: int = 0
    seconds: float = 0.0
    first: Mismatch | None = None

    @classmethod
    def of(cls, text: str) -> Verdict:
        """From the JSON that another process shared."""
        fields = json.loads(text)
        return cls(**fields | {"first": Mismatch(**fields["first"]) if fields["first"] else None})


@dataclass(frozen=True)
class WrongElement:
    """The first wrong element and the way its chunk took to get there."""

    mismatch: Mismatch
    chunk: int
    path: tuple[Hop, ...]

    def __str__(self) -> str:
        return f"{self.mismatch} (chunk {self.chunk})"

    def to_json(self) -> dict[str, Any]:
        """The mismatch, its chunk of that buffer, and the path's steps in the order in which they happen."""
        return {**self.mismatch.to_json(), "chunk": self.chunk, "path": [hop.to_json() for hop in self.path]}


def _ready(world: World, case: Case, settings: Settings) -> tuple[dict[int, RankBuffers], Execution]:
    """Buffers for the ranks of this process, and the program set up on them."""
    layout, program = case.layout, case.program
    what = f"{case.where}: buffers for {case.size_bytes} bytes"
    scratch = {rank: scratch_chunks(program, rank, case.where) for rank in range(program.nranks)}
    chunks = sum(layout.input_chunks + layout.output_chunks + scratch[rank] for rank in world.local)
    require_memory(chunks * case.chunk_bytes * world.processes_here, what)
    try:
        buffers = {
            rank: RankBuffers(layout, rank, scratch[rank], case.chunk_bytes, case.in_place) for rank in world.local
        }
        execution = world.prepare(case, buffers, settings)
    except MemoryError:
        raise InputError(f"{what} do not fit in memory; choose a smaller --size") from None
    require_memory((chunks * case.chunk_bytes + execution.fifo_bytes) * world.processes_here, what)
    return buffers, execution


def fill(buffers: RankBuffers, reference: Reference, rank: int) -> None:
    """Fresh data: scratch and output start as anything but the answer, then the input goes in."""
    buffers.scratch.fill(0xCD)
    expected = reference.output(rank)
    if expected is None:
        buffers.output.fill(0xCD)
    else:
        np.invert(expected.view(np.uint8), out=buffers.output)
    buffers.input[:] = reference.input(rank).view(np.uint8)


def check(buffers: RankBuffers, reference: Reference, rank: int, in_place: bool) -> tuple[int, Mismatch | None]:
    """How many elements of `rank`'s output — and, out of place, of its input — are wrong, and the first of them."""
    dtype = reference.dtype
    wrong, first = 0, None
    if (expected := reference.output(rank)) is not None:
        wrong, first = first_mismatch(rank, "output", expected, buffers.output.view(dtype.storage), dtype)
    if not in_place:
        got = buffers.input.view(dtype.storage)
        changed, change = first_mismatch(rank, "input (changed)", reference.input(rank), got, dtype)
        wrong, first = wrong + changed, first or change
    return wrong, first


#: Collectives whose count is one rank's share of the size.
_COUNT_PER_RANK = frozenset({"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})


def _wrong_element(case: Case, mismatch: Mismatch) -> WrongElement:
    buffer = "o" if mismatch.where == "output" else "i"
    chunk = mismatch.index // case.chunk_elements
    return WrongElement(
        mismatch, chunk, path_to(case.program, mismatch.rank, buffer, chunk, case.in_place, case.layout)
    )


def _row(case: Case, verdict: Verdict) -> Row:
    collective, nranks = case.program.collective, case.program.nranks
    elements = case.size_bytes // case.dtype.bytes
    algbw = case.size_bytes / verdict.seconds / 1e9 if verdict.seconds > 0 else 0.0
    return Row(
        size=case.size_bytes,
        count=elements // nranks if collective in _COUNT_PER_RANK else elements,
        dtype=case.dtype.name,
        op=case.reduction if collective in REDUCING else "none",
        root=-1 if case.root is None else case.root,
        mode=MODES[case.in_place],
        time_us=verdict.seconds * 1e6,
        algbw=algbw,
        busbw=algbw * bus_factor(collective, nranks),
        wrong=verdict.wrong,
        out_of_bounds=verdict.overrun,
        first_wrong=_wrong_element(case, verdict.first) if verdict.first else None,
    )


def bus_factor(collective: str, nranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it: what the busiest link must carry."""
    if collective == "allreduce":
        return 2 * (nranks - 1) / nranks
    return (nranks - 1) / nranks if collective in _COUNT_PER_RANK else 1.0
