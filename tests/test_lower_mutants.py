"""Lowered programs, broken on purpose: the checker catches every fault, or execution shows that it is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from correct_programs import edit, with_gpu, with_step
from lowered import by_hand, execute, greedy

from teccl_msccl.collective.demand import demand_for
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import lower
from teccl_msccl.program.program import BUFFERS, Program, Step, Threadblock
from teccl_msccl.schedule.schedule import Schedule
from teccl_msccl.synthesis.problem import Problem
from teccl_msccl.topology.catalog import load

#: What lowered programs consist of, and which of their buffers each reads and writes.
READS = ("s", "cpy", "rrc")
WRITES = ("r", "cpy", "rrc")


class Mutant(NamedTuple):
    kind: str
    program: Program
    rank: int
    tb: int
    step: int


def mutants(program: Program) -> Iterator[Mutant]:
    """Every program with one fault. Fields that a step does not use (an s has no destination) are left alone."""
    for rank, gpu in enumerate(program.gpus):
        for buffer in ("input_chunks", "output_chunks", "scratch_chunks"):
            if (chunks := getattr(gpu, buffer)) > 0:
                yield Mutant(buffer, with_gpu(program, rank, **{buffer: chunks - 1}), rank, -1, -1)
        for tb, block in enumerate(gpu.threadblocks):
            yield from (Mutant(kind, changed, rank, tb, -1) for kind, changed in _wired_wrongly(program, rank, tb))
            for at in range(len(block.steps)):
                yield from (
                    Mutant(kind, changed, rank, tb, at) for kind, changed in _wrong_steps(program, rank, tb, at)
                )


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
    yield "type", fields(type={"s": "cpy", "cpy": "re", "r": "rrc", "rrc": "r"}[step.type])
    yield "type", fields(type="nop")


def why_equivalent(original: Program, mutant: Mutant) -> str | None:
    """Why the fault may be none, by kind; None where it must be one."""
    block = original.gpus[mutant.rank].threadblocks[mutant.tb] if mutant.tb >= 0 else Threadblock(-1, -1, 0, ())
    match mutant.kind:
        case "swap" if block.send == block.recv == -1:
            return "copies, between places that have nothing to do with each other, in another order"
        case "swap" if {step.type for step in block.steps[mutant.step : mutant.step + 2]} & {"nop"}:
            return "the same waits, shifted by a step or in another order"
        case "repeat" if block.steps[mutant.step].type in ("nop", "cpy"):
            return "waiting twice for the same, or copying the same twice"
        case "other step" | "other threadblock":
            return "a wait that implies the old one: for a later step, or a step that itself waits for the old one"
        case "srcbuf" if original.collective in ("allgather", "broadcast", "gather", "alltoall"):
            return "input and output (or the copy in scratch) hold the same chunk by then"
        case "send" | "recv" if block.send == block.recv == -1:
            return "a peer to which nothing is sent"
        case "input_chunks" | "output_chunks":
            return "declared with none, a buffer is not checked: runtimes take the collective's own size"
        case "drop" | "type" if block.steps[mutant.step].type == "nop":
            return None
    return None


def ring_allgather() -> Schedule:
    return greedy(Problem(load("ring-4").topology, "allgather", 1e6), 1)


def alltoall_on_a_line() -> Schedule:
    """Relays through scratch, and in place what is overwritten is staged."""
    return greedy(Problem(load("line-3").topology, "alltoall", 1e6), 1)


def star_reduce() -> Schedule:
    """Reductions in place of each other, with one wait each, and with two where the root's own share is done."""
    demand = demand_for("reduce", 4, 1e6, 1, 0)
    return by_hand(load("star-4").topology, demand, [(0, 1, 0), (0, 3, 2), (0, 2, 0)])


def allreduce_in_place() -> Schedule:
    return greedy(Problem(load("full-3").topology, "allreduce", 1e6), 1)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "ring allgather": lambda: lower(ring_allgather(), protocol="Simple", spread=1),
    "alltoall on a line": lambda: lower(alltoall_on_a_line(), protocol="LL", spread=1),
    "alltoall on a line, out of place": lambda: lower(
        alltoall_on_a_line(), mode="outofplace", protocol="LL128", spread=1
    ),
    "star reduce": lambda: lower(star_reduce(), protocol="Simple", spread=1),
    "full allreduce": lambda: lower(allreduce_in_place(), protocol="Simple", spread=1),
    "mesh scatter": lambda: lower(
        greedy(Problem(load("mesh-2x2").topology, "scatter", 1e6), 2), protocol="LL", spread=1
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_fault_is_caught_or_none(name: str) -> None:
    original = PROGRAMS[name]()
    root = check(original).root
    seen: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for mutant in mutants(original):
        seen[mutant.kind] += 1
        if not check(mutant.program, root=root).ok:
            continue
        missed[mutant.kind] += 1
        reason = why_equivalent(original, mutant)
        assert reason, (mutant, original.gpus[mutant.rank].threadblocks[mutant.tb])
        for slots, seed, workers in ((1, 0, 1), (1, 3, 2), (2, 1, 3), (8, 2, 1)):
            rows = execute(mutant.program, root, slots=slots, seed=seed, workers=workers, timeout=2.0)
            assert sum(row.wrong + row.out_of_bounds for row in rows) == 0, (reason, mutant)
    assert set(seen) >= {"drop", "repeat", "send", "recv", "chan", "cnt", "srcoff", "dstoff", "type"}
    print(name, sum(seen.values()), dict(missed))
