"""Lowered programs, broken on purpose: the checker catches every fault, or execution shows that it is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from correct_programs import edit, with_gpu, with_step
from lowered import execute
from schedules_by_hand import alltoall_on_a_line, by_hand, ring, scatter_on_a_line

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import Lowering, lower
from teccl_msccl.program.program import BUFFERS, STEP_TYPES, Program, Step, Threadblock
from teccl_msccl.program.targets import TARGETS
from teccl_msccl.program.tune import Choice
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.topology.catalog import load

#: What lowered programs consist of, and which of their buffers each reads and writes.
READS = ("s", "cpy", "re", "rrc", "rrs", "rrcs")
WRITES = ("r", "cpy", "re", "rcs", "rrc", "rrcs")


class Mutant(NamedTuple):
    kind: str
    program: Program
    rank: int
    tb: int
    step: int


def mutants(program: Program) -> Iterator[Mutant]:
    """Every program with one fault. Fields that a step does not use (an s has no destination) are left alone."""
    for kind, changed in _wrong_header(program):
        yield Mutant(kind, changed, -1, -1, -1)
    for rank, gpu in enumerate(program.gpus):
        for buffer in ("input_chunks", "output_chunks", "scratch_chunks"):
            if (chunks := getattr(gpu, buffer)) > 0:
                yield Mutant(buffer, with_gpu(program, rank, **{buffer: chunks - 1}), rank, -1, -1)
        for tb, block in enumerate(gpu.threadblocks):
            left = (*gpu.threadblocks[:tb], *gpu.threadblocks[tb + 1 :])
            yield Mutant("no threadblock", with_gpu(program, rank, threadblocks=left), rank, -1, -1)
            for kind, changed in _wired_wrongly(program, rank, tb):
                yield Mutant(kind, changed, rank, tb, -1)
            for at in range(len(block.steps)):
                yield from (
                    Mutant(kind, changed, rank, tb, at) for kind, changed in _wrong_steps(program, rank, tb, at)
                )


def _wrong_header(program: Program) -> Iterator[tuple[str, Program]]:
    yield "nchannels", replace(program, nchannels=program.nchannels - 1)
    yield "nchannels", replace(program, nchannels=TARGETS[program.target].max_channels + 1)
    for by in (-1, 1):
        yield "nchunks", replace(program, nchunks=program.nchunks + by)
    for collective in TARGETS[program.target].collectives:
        if collective not in (program.collective, "custom", "alltoallv"):  # of those the result is not known
            yield "collective", replace(program, collective=collective)
    yield "bytes", replace(program, min_bytes=-1)
    yield "bytes", replace(program, max_bytes=-1)
    yield "bytes", replace(program, min_bytes=program.max_bytes + 1)
    if TARGETS[program.target].both_modes:
        yield "no mode", replace(program, inplace=False, outofplace=False)
    if not (program.inplace and program.outofplace):
        yield "other mode", replace(program, inplace=not program.inplace, outofplace=not program.outofplace)
    yield "gpus", replace(program, gpus=program.gpus[:-1])


def _wired_wrongly(program: Program, rank: int, tb: int) -> Iterator[tuple[str, Program]]:
    block = program.gpus[rank].threadblocks[tb]
    for end in ("send", "recv"):
        for peer in range(-1, program.nranks):
            if peer != getattr(block, end) and (peer >= 0 or getattr(block, end) >= 0):
                yield end, edit(program, rank, tb, **{end: peer})
    if block.send >= 0 or block.recv >= 0:
        yield "chan", edit(replace(program, nchannels=2), rank, tb, chan=block.chan + 1)


def _wrong_steps(program: Program, rank: int, tb: int, at: int) -> Iterator[tuple[str, Program]]:
    block = program.gpus[rank].threadblocks[tb]
    step = block.steps[at]

    def steps(change: Callable[[list[Step]], None]) -> Program:
        return edit(program, rank, tb, change)

    def fields(**changes: object) -> Program:
        return with_step(program, rank, tb, at, **changes)

    yield "drop", steps(lambda steps: steps.pop(at))
    yield "repeat", steps(lambda steps: steps.insert(at, step))
    if at + 1 < len(block.steps):
        yield "swap", steps(lambda steps: steps.insert(at, steps.pop(at + 1)))
    if step.depid >= 0:
        yield "no wait", fields(depid=-1, deps=-1)
        for by in (-1, 1):
            yield "other step", fields(deps=step.deps + by)
        for depid in range(len(program.gpus[rank].threadblocks)):
            if depid != step.depid:
                yield "other threadblock", fields(depid=depid)
    if step.hasdep:
        yield "no flag", fields(hasdep=False)
    if step.type == "nop":
        return
    for by in (-1, 1):
        yield "cnt", fields(cnt=step.cnt + by)
        if step.type in READS:
            yield "srcoff", fields(srcoff=step.srcoff + by)
        if step.type in WRITES:
            yield "dstoff", fields(dstoff=step.dstoff + by)
    for buffer in BUFFERS:
        if step.type in READS and buffer != step.srcbuf:
            yield "srcbuf", fields(srcbuf=buffer)
        if step.type in WRITES and buffer != step.dstbuf:
            yield "dstbuf", fields(dstbuf=buffer)
    for type in STEP_TYPES:
        if type != step.type:
            yield "type", fields(type=type)


def why_equivalent(original: Program, mutant: Mutant) -> str | None:
    """Why the fault may be none, by kind; None where it must be one."""
    block = original.gpus[mutant.rank].threadblocks[mutant.tb] if mutant.tb >= 0 else Threadblock(-1, -1, 0, ())
    step = block.steps[mutant.step] if mutant.step >= 0 else None
    match mutant.kind:
        case "swap" if block.send == block.recv == -1:
            return "copies between places that have nothing to do with each other, in another order"
        case "repeat" if step and step.type in ("nop", "cpy"):
            return "waiting twice for the same, or copying the same twice"
        case "cnt" if step and step.type == "cpy":
            return "one chunk more, into a place that is written before it is read"
        case "no flag":
            return "waits are for a step or any later one, so the threadblock's next flag ends them"
        case "no wait" | "other step" | "other threadblock" if REMOTE_ORDER in _warnings(mutant.program):
            return "messages through other ranks keep the order, which no runtime promises: the checker warns"
        case "other step" | "other threadblock":
            return "a wait that implies the old one: for a later step, or for one that itself waits for the old one"
        case "srcbuf" if original.collective in ("allgather", "alltoall"):
            return "input and output hold the same chunk by then"
        case "output_chunks" if original.gpus[mutant.rank].output_chunks == 1:
            return "declared with none, a buffer's size is not checked: runtimes take the collective's own"
        case "other mode":
            return "the program happens to be right for the other calls, too"
    return None


REMOTE_ORDER = "remote-order"


def _warnings(program: Program) -> set[str]:
    return {finding.code for finding in check(program).findings}


def reduce_by_a_tree() -> Schedule:
    """The root merges what two ranks bring, one of them another's share too."""
    return by_hand(load("star-4").topology, demand_for("reduce", 4, 1e6), [(0, 1, 0), (0, 3, 2), (0, 2, 0)])


def allreduce_by_pairs() -> Schedule:
    """Each chunk is merged at its owner and copied to the others: received where the own share was sent from."""
    pairs = [(chunk, rank) for chunk in range(3) for rank in range(3) if rank != chunk]
    hops = [(chunk, rank, chunk) for chunk, rank in pairs] + [(chunk, chunk, rank) for chunk, rank in pairs]
    return by_hand(load("full-3").topology, demand_for("allreduce", 3, 1e6, 3), hops, copies=len(pairs))


def one_way_ring(n: int) -> Schedule:
    """The textbook's allreduce."""
    hops = [(c, (c + hop) % n, (c + hop + 1) % n) for hop in range(2 * n - 2) for c in range(n)]
    return by_hand(load(f"ring-{n}").topology, demand_for("allreduce", n, 1e6, n), hops, copies=n * (n - 1))


def fused_tree() -> Program:
    """A sum on its way through rank 1, and back past it: rrs, rrcs and rcs."""
    hops = [(0, 0, 1), (0, 1, 2), (0, 2, 1), (0, 1, 0)]
    schedule = by_hand(load("line-3").topology, demand_for("allreduce", 3, 1e6), hops, copies=2)
    modes = frozenset({"outofplace"})
    return Lowering(schedule, TARGETS["executor"], modes, "tree").program(Choice("LL", fused=True))


def everyone_twice() -> Schedule:
    """An alltoall with two chunks for each."""
    demand = demand_for("alltoall", 3, 1e6, 2)
    hops = [(c.id, c.origin[0], c.want[0]) for c in demand.chunks if c.origin != c.want]
    return by_hand(load("full-3").topology, demand, hops)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "ring allgather": lambda: lower(ring(3), protocol="Simple", spread=1, fuse=False),
    "alltoall on a line": lambda: lower(alltoall_on_a_line(3), protocol="LL", spread=1, fuse=False),
    "alltoall out of place": lambda: lower(
        alltoall_on_a_line(3), mode="outofplace", protocol="LL128", spread=1, fuse=False
    ),
    "reduce by a tree": lambda: lower(reduce_by_a_tree(), protocol="Simple", spread=1, fuse=False),
    "allreduce by pairs": lambda: lower(allreduce_by_pairs(), protocol="Simple", spread=1, fuse=False),
    "ring of fused steps for msccl": lambda: lower(one_way_ring(3), "msccl", protocol="Simple", spread=1, instances=1),
    "tree of fused steps": lambda: fused_tree(),
    "pairs for rccl": lambda: lower(allreduce_by_pairs(), "rccl", protocol="Simple", spread=1),
    "merged steps": lambda: lower(everyone_twice(), mode="outofplace", protocol="Simple", spread=1),
    "scatter on a line": lambda: lower(scatter_on_a_line(), protocol="LL", spread=1, fuse=False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_fault_is_caught_or_none(name: str) -> None:
    original = PROGRAMS[name]()
    root, fewest = check(original).root, check(original).min_credits or 1
    seen: Counter[str] = Counter()
    for mutant in mutants(original):
        seen[mutant.kind] += 1
        if not check(mutant.program, root=root if root in range(mutant.program.nranks) else None).ok:
            continue
        reason = why_equivalent(original, mutant)
        assert reason, (mutant, original.gpus[mutant.rank].threadblocks[mutant.tb])
        assert original.inplace == mutant.program.inplace or mutant.kind == "other mode"
        for slots, seed, workers in ((1, 0, 1), (1, 3, 2), (2, 1, 3), (8, 2, 1)):
            slots = max(slots, fewest)
            rows = execute(mutant.program, root, slots=slots, seed=seed, workers=workers, timeout=2.0)
            assert sum(row.wrong + row.out_of_bounds for row in rows) == 0, (reason, mutant)
    assert set(seen) >= {"drop", "repeat", "send", "recv", "chan", "cnt", "srcoff", "dstoff", "type", "no threadblock",
                         "nchunks", "collective", "bytes", "gpus"}  # fmt: skip
