"""Who uses which link when: the rows and bars of a Gantt chart, of a schedule or of a simulated program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from ..program.plan_file import PlanFile
from ..program.program import SENDING, Program
from ..program.simulate import Timeline
from ..program.simulate_plan import PlanTiming
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from .chart import Bar, Gantt, Row
from .crowd import crowded
from .trace import link_name

#: Beyond so many bars, those of a link that all but touch are drawn as one.
MOST_BARS = 20_000
#: Beyond so many links, the busiest are drawn.
MOST_ROWS = 400
#: Beyond so many GPUs, groups of links are drawn.
MOST_GPUS = 64
_TOUCHING = 1 / 2000


def schedule_gantt(schedule: Schedule) -> Gantt:
    """The links of a schedule: occupied from the head's coming until the tail has left (cut-through)."""
    bars: dict[int, list[Bar]] = defaultdict(list)
    for send in schedule.sends:
        nbytes = schedule.demand.chunks[send.chunk].bytes
        src, dst = schedule.ends(send)
        verb = "reduced" if send.reduce else "sent"
        head, rate = send.start_us, math.inf
        for id in send.path:
            link = schedule.topology.link_by_id[id]
            rate = min(rate, link.bandwidth_GBps * 1e3)
            tail = head + nbytes / rate
            text = f"chunk {send.chunk} {verb} from GPU {src} to GPU {dst}"
            bars[id].append(Bar(tail - link.beta_us(nbytes), tail, text))
            head += link.alpha_us
    return _gantt(schedule.topology, bars, schedule.finish_us)


def program_gantt(program: Program, topology: Topology, timeline: Timeline) -> Gantt:
    """The links of a simulated program: each send on all links of its way, for as long as it takes."""
    bars: dict[int, list[Bar]] = defaultdict(list)
    for step in timeline.steps:
        block = program.gpus[step.gpu].threadblocks[step.tb]
        what = block.steps[step.step]
        if what.type in SENDING:
            text = (
                f"GPU {step.gpu} tb {step.tb} step {step.step} ({what.type} {what.srcbuf}{what.srcoff}) to {block.send}"
            )
            for link in timeline.routes.get((step.gpu, step.tb), ()):
                bars[link].append(Bar(step.start_us, step.end_us, text))
    return _gantt(topology, bars, max((step.end_us for step in timeline.steps), default=0.0))


def plan_gantt(plan: PlanFile, topology: Topology, timing: PlanTiming) -> Gantt:
    """The links of a simulated MSCCL++ plan."""
    bars: dict[int, list[Bar]] = defaultdict(list)
    for move in timing.transfers:
        name = plan.gpus[move.gpu].threadblocks[move.tb].ops[move.op].name
        text = f"GPU {move.gpu} tb {move.tb} op {move.op} ({name})"
        bars[move.link].append(Bar(move.start_us, move.end_us, text))
    return _gantt(topology, bars, timing.finish_us)


def _gantt(topology: Topology, bars: dict[int, list[Bar]], finish_us: float) -> Gantt:
    for mine in bars.values():
        mine.sort()
    if topology.nranks > MOST_GPUS:
        return crowded(topology, bars, finish_us, MOST_ROWS)
    merge = sum(map(len, bars.values())) > MOST_BARS
    rows = []
    for id, mine in bars.items():
        used = _covered(mine) / finish_us if finish_us > 0 else 0.0
        drawn = _merged(mine, finish_us * _TOUCHING) if merge else mine
        rows.append(Row(id, link_name(topology, id), topology.link_by_id[id].kind or "link", tuple(drawn), used))
    if len(rows) > MOST_ROWS:
        rows = sorted(rows, key=lambda row: -row.used)[:MOST_ROWS]
    return Gantt(tuple(sorted(rows, key=lambda row: (row.kind, row.link))), finish_us, len(bars), merge)


def _covered(bars: Iterable[Bar]) -> float:
    """The length of the union of sorted bars."""
    total, until = 0.0, -math.inf
    for bar in bars:
        total += max(0.0, bar.end_us - max(bar.start_us, until))
        until = max(until, bar.end_us)
    return total


def _merged(bars: Iterable[Bar], gap_us: float) -> list[Bar]:
    merged: list[Bar] = []
    counts: list[int] = []
    for bar in bars:
        if merged and bar.start_us - merged[-1].end_us <= gap_us:
            counts[-1] += 1
            end = max(bar.end_us, merged[-1].end_us)
            merged[-1] = Bar(merged[-1].start_us, end, f"{counts[-1]} transfers, close together")
        else:
            merged.append(bar)
            counts.append(1)
    return merged
