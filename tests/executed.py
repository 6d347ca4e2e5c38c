"""Programs for tests, executed by threads; and spoilt on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from teccl_msccl.program.program import Program
from teccl_msccl.runtime.elements import DTYPES, Dtype
from teccl_msccl.runtime.root import root_of
from teccl_msccl.runtime.sweep import Row, Sweep, measure
from teccl_msccl.runtime.threads import ThreadWorld
from teccl_msccl.runtime.world import Settings

FLOAT = (DTYPES["float"],)
RINGS = ("allgather", "reduce_scatter", "allreduce")


def execute(
    program: Program,
    sizes: Sequence[int] = (4096,),
    dtypes: Sequence[Dtype] = FLOAT,
    ops: Sequence[str] = ("sum",),
    root: int | None = None,
    **how: object,
) -> list[Row]:
    """Every row of `program` run by threads, once each."""
    sweep = Sweep(sizes, dtypes, ops, iterations=1, warmup=0)
    world = ThreadWorld(program.nranks)
    cases = sweep.cases(program, root_of(program, root, "program"), "program")
    return [measure(world, case, sweep, Settings(**{"timeout": 5.0, **how})) for case in cases]


def with_step(program: Program, rank: int, tb: int, position: int, **changes: object) -> Program:
    """`program` with one step changed."""
    gpu = program.gpus[rank]
    steps = list(gpu.threadblocks[tb].steps)
    steps[position] = steps[position]._replace(**changes)
    threadblocks = list(gpu.threadblocks)
    threadblocks[tb] = dataclasses.replace(threadblocks[tb], steps=tuple(steps))
    gpus = list(program.gpus)
    gpus[rank] = dataclasses.replace(gpu, threadblocks=tuple(threadblocks))
    return dataclasses.replace(program, gpus=tuple(gpus))


def wrong(rows: Sequence[Row]) -> int:
    return sum(row.wrong + row.out_of_bounds for row in rows)
