"""What a report tells of a schedule or a program, gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..collective.demand import COLLECTIVES, Demand, collective_named, demand_for
from ..collective.size import format_size
from ..program.check import Verdict, check
from ..program.check_plan import check_plan
from ..program.plan_file import plan_file
from ..program.program import Program
from ..program.simulate import ProgramTiming, simulate, timeline
from ..program.simulate_plan import simulate_plan
from ..schedule.read import resized
from ..schedule.schedule import Schedule
from ..synthesis.bounds import program_bounds
from ..topology.model import Topology
from .chart import Gantt
from .gantt import plan_gantt, program_gantt, schedule_gantt
from .sweep import SizeRow, geometric_sizes, sweep

#: Up to so many GPUs many sizes are worked out, up to so many some, beyond none.
_FEW_GPUS, _MANY_GPUS = 16, 64
#: For each baseline at each size: enough for the chunks that it needs.
SECONDS_A_BASELINE = 0.3


@dataclass(frozen=True)
class Facts:
    """All that the page shows; `bounds` are (term, µs, certificate)."""

    title: str
    topology: Topology
    size_bytes: float
    finish_us: float
    gantt: Gantt
    bounds: tuple[tuple[str, float, str], ...]
    verdict: Verdict | None = None
    timing: ProgramTiming | None = None
    sweep: tuple[SizeRow, ...] = ()

    def figures(self) -> list[tuple[str, str]]:
        """The headline numbers: (what, value)."""
        found = [("time", f"{self.finish_us:.2f} µs")]
        if self.finish_us > 0:
            found.append(("algbw", f"{self.size_bytes / (self.finish_us * 1e3):.2f} GB/s"))
        if self.bounds and self.bounds[0][1] > 0:
            bound_us = self.bounds[0][1]
            found += [("lower bound", f"{bound_us:.2f} µs"), ("above it", f"{self.finish_us / bound_us - 1:.1%}")]
        found += [("GPUs", str(self.topology.nranks)), ("links used", str(self.gantt.links))]
        if self.verdict is not None:
            found.append((f"checked for {self.verdict.target}", "ok" if self.verdict.ok else "NOT OK"))
        return found


def sizes_for(topology: Topology) -> list[float]:
    """The sizes that a report sweeps over without taking long."""
    if topology.nranks > _MANY_GPUS:
        return []
    return geometric_sizes(1024, 2**30, 4 if topology.nranks <= _FEW_GPUS else 32)


def schedule_facts(schedule: Schedule, sizes: Sequence[float] = ()) -> Facts:
    """A schedule's report, which is validated first; over `sizes`, the same sends are re-timed."""
    schedule.validate()
    demand, topology = schedule.demand, schedule.topology
    rows: list[SizeRow] = []
    if sizes and demand.collective in COLLECTIVES and not demand.groups:
        ours = partial(resized, schedule)
        rows = sweep(
            topology, demand.collective, sizes, root=demand.root or 0, time_limit=SECONDS_A_BASELINE, ours=ours
        )
    return Facts(
        title=f"{demand.collective} of {format_size(demand.size_bytes)} on {topology.name}",
        topology=topology,
        size_bytes=demand.size_bytes,
        finish_us=schedule.finish_us,
        gantt=schedule_gantt(schedule),
        bounds=_bounds(topology, demand),
        sweep=tuple(rows),
    )


def program_facts(
    program: Program, topology: Topology, size_bytes: float, sizes: Sequence[float] = (), root: int | None = None
) -> Facts:
    """A program's report: checked, and simulated under its runtime's rules; over `sizes` too."""
    verdict = check(program, root=root)
    timing = simulate(program, topology, size_bytes)
    known = program.collective in COLLECTIVES
    rows: list[SizeRow] = []
    if sizes and known:
        ours = partial(_timed, program, topology, root=verdict.root)
        rows = sweep(
            topology, program.collective, sizes, root=verdict.root or 0, time_limit=SECONDS_A_BASELINE, ours=ours
        )
    demand = demand_for(program.collective, topology.nranks, size_bytes, 1, verdict.root or 0) if known else None
    return Facts(
        title=f"{program.name}: {program.collective} of {format_size(size_bytes)} on {topology.name}",
        topology=topology,
        size_bytes=size_bytes,
        finish_us=timing.finish_us,
        gantt=program_gantt(program, topology, timeline(program, topology, size_bytes)),
        bounds=_bounds(topology, demand) if demand is not None else (),
        verdict=verdict,
        timing=timing,
        sweep=tuple(rows),
    )


def plan_facts(value: Any, where: str, topology: Topology, size_bytes: float, sizes: Sequence[float] = ()) -> Facts:
    """The report of the MSCCL++ plan in the JSON `value`: checked, and simulated; over `sizes` too."""
    plan, verdict = plan_file(value, where), check_plan(value, where)
    timing = simulate_plan(plan, topology, size_bytes)
    collective, root = collective_named(plan.collective), verdict.root or 0

    def timed(size: float) -> Schedule:
        demand = demand_for(collective, topology.nranks, size, 1, root)
        return Schedule(topology, demand, (), simulate_plan(plan, topology, size).finish_us)

    rows = sweep(topology, collective, sizes, root=root, time_limit=SECONDS_A_BASELINE, ours=timed) if sizes else []
    return Facts(
        title=f"{plan.name}: {collective} of {format_size(size_bytes)} on {topology.name}",
        topology=topology,
        size_bytes=size_bytes,
        finish_us=timing.finish_us,
        gantt=plan_gantt(plan, topology, timing),
        bounds=_bounds(topology, demand_for(collective, topology.nranks, size_bytes, 1, root)),
        verdict=verdict,
        timing=timing,
        sweep=tuple(rows),
    )


def _timed(program: Program, topology: Topology, size_bytes: float, *, root: int | None) -> Schedule:
    """A program's simulated time, in the place of a schedule's."""
    demand = demand_for(program.collective, topology.nranks, size_bytes, 1, root or 0)
    return Schedule(topology, demand, (), simulate(program, topology, size_bytes).finish_us)


def _bounds(topology: Topology, demand: Demand) -> tuple[tuple[str, float, str], ...]:
    if demand.collective not in COLLECTIVES:
        return ()
    return tuple((bound.term, bound.bound_us, bound.certificate) for bound in program_bounds(topology, demand))
