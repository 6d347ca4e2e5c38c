"""Lowering's targets, measured: python benchmarks/lowering.py [--topologies DIR] [--part 1/8] [--schedules DIR]

Every case is a topology, a collective and a size: a schedule of `auto` (a second of it; kept in --schedules, and taken
from there if it is there), lowered for each target that takes it. Does the program pass the checker, how long does it
take with the links as the schedule takes them, over the schedule's own time, and how many seconds do lowering and
checking take? Where that program is too slow, a longer search's schedules, between which `synth` chooses by their
programs, are lowered too, until one's is fast enough: against the fastest of these schedules ("of them"). With --part
i/n, every n-th case from the i-th on: rows of several parts together are the whole table.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from teccl_msccl import Schedule, Topology, synthesize
from teccl_msccl.collective.size import parse_size
from teccl_msccl.errors import Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import lower
from teccl_msccl.program.simulate import simulate
from teccl_msccl.synthesis.portfolio import run
from teccl_msccl.synthesis.problem import Problem

PRESETS = ("dgx1", "dgx-a100", "dgx-a100x2", "dgx-h100x2", "ndv2x2", "mi250x", "star-8", "full-8", "torus-4x4")
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")
SECONDS, MEGABYTES = 10.0, 2000
#: Of the search for a schedule, and of the longer one.
SEARCH_SECONDS, LONGER_SECONDS = 1.0, 10.0
#: Cases that are shown again at the end.
WORST = 12


@dataclass(frozen=True)
class Row:
    """One schedule's program for one target."""

    label: str
    ratio: float
    met: bool


def allowed(size: str) -> float:
    """How much longer than its schedule a program may take."""
    return 1.05 if parse_size(size) >= 64e6 else 1.10


def row(label: str, schedule: Schedule, target: str, most: float, fastest_us: float) -> Row:
    """Lower, check and simulate once, print it, and say whether all targets are met."""
    began = time.process_time()
    try:
        program = lower(schedule, target)
    except Refused as refusal:
        print(f"{label} {target:8} refused: {refusal}", flush=True)
        return Row(f"{label} {target}", float("inf"), False)
    lowered = time.process_time()
    right = check(program, root=schedule.demand.root).ok
    checked = time.process_time()
    timing = simulate(program, schedule.topology, schedule.demand.size_bytes, neutral=True)
    ratio = timing.finish_us / fastest_us
    good = right and ratio <= most and max(lowered - began, checked - lowered) <= SECONDS
    print(
        f"{label} {target:8} {program.protocol:6} {'right' if right else 'WRONG'} {ratio:7.3f} ≤ {most:.2f} "
        f"{lowered - began:6.2f} {checked - lowered:6.2f}  {'ok' if good else 'MISSED'}",
        flush=True,
    )
    return Row(f"{label} {target}", ratio, good)


def scheduled(name: str, collective: str, size: str, kept: Path | None) -> Schedule:
    """The case's schedule, kept or made."""
    file = kept and kept / f"{Path(name).stem}.{collective}.{size}.json"
    if file and file.exists():
        return Schedule.read(file)
    schedule = synthesize(Topology.load(name), collective, size, time_limit=SEARCH_SECONDS)
    if file:
        schedule.write(file)
    return schedule


def others(name: str, collective: str, size: str, kept: Path | None) -> tuple[Schedule, ...]:
    """What `synth` would choose between after a longer search, kept or made."""
    files = sorted(kept.glob(f"{Path(name).stem}.{collective}.{size}.longer-*.json")) if kept else []
    if files:
        return tuple(map(Schedule.read, files))
    problem = Problem(Topology.load(name), collective, parse_size(size))
    schedules = run(problem, time_limit=LONGER_SECONDS).schedules
    for number, schedule in enumerate(schedules if kept else ()):
        schedule.write(kept / f"{Path(name).stem}.{collective}.{size}.longer-{number}.json")
    return schedules


def best_row(name: str, collective: str, size: str, target: str, kept: Path | None) -> Row:
    """The row of the case's schedule or, where that misses, of the first of others that does not, or the best."""
    schedule = scheduled(name, collective, size, kept)
    label, most = f"{schedule.topology.name:18} {collective:14} {size:>5}", allowed(size)
    first = row(f"{label} {len(schedule.sends):6} sends", schedule, target, most, schedule.finish_us)
    if first.met:
        return first
    rows, choices = [first], others(name, collective, size, kept)
    fastest_us = min(each.finish_us for each in (schedule, *choices))
    for each in sorted(choices, key=lambda each: len(each.sends)):
        rows.append(row(f"{label} {len(each.sends):6} of them", each, target, most, fastest_us))
        if rows[-1].met:
            break
    return min(rows, key=lambda each: (not each.met, each.ratio))


def cases(names: list[str], sizes: list[str], part: str) -> Iterator[tuple[str, str, str]]:
    """The part's topologies, collectives and sizes."""
    first, parts = map(int, part.split("/"))
    every = [(name, collective, size) for name in names for collective in COLLECTIVES for size in sizes]
    yield from every[first - 1 :: parts]


def main() -> int:
    """Print every row and a summary; 1 if a target was missed."""
    options = argparse.ArgumentParser(description="Programs against their schedules")
    options.add_argument("--topologies", type=Path, help="a folder of topology JSONs (default: some presets)")
    options.add_argument("--sizes", default="1KB,64KB,1MB,64MB,1GB")
    options.add_argument("--targets", default="executor,msccl,rccl")
    options.add_argument("--part", default="1/1", help="i/n: every n-th case, from the i-th")
    options.add_argument("--schedules", type=Path, help="a folder where schedules are kept")
    asked = options.parse_args()
    names = [str(path) for path in sorted(asked.topologies.glob("*.json"))] if asked.topologies else list(PRESETS)
    if asked.schedules:
        asked.schedules.mkdir(parents=True, exist_ok=True)
    print(f"targets: right, the ratio as given, lowering and checking ≤ {SECONDS:g} s each, ≤ {MEGABYTES} MB")
    rows = []
    for name, collective, size in cases(names, asked.sizes.split(","), asked.part):
        rows += [best_row(name, collective, size, target, asked.schedules) for target in asked.targets.split(",")]
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    met = sum(each.met for each in rows)
    print(f"{met} of {len(rows)} met ({100 * met / max(1, len(rows)):.1f} %), {megabytes:.0f} MB; the worst:")
    for each in sorted(rows, key=lambda each: -each.ratio)[:WORST]:
        print(f"  {each.ratio:7.3f} {each.label}")
    return 0 if met == len(rows) and megabytes <= MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
