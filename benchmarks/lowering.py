"""Lowering's targets, measured: python benchmarks/lowering.py [--topologies DIR] [--sizes 64MB,1GB] [--targets rccl]

Each row is one schedule of the greedy search (a second of it), lowered for each target that takes it: does the program
pass the checker, how long does it take with the links as the schedule takes them, over the schedule's own time, and
how many seconds do lowering and checking take.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from teccl_msccl import Topology, synthesize
from teccl_msccl.collective.size import parse_size
from teccl_msccl.errors import Refused
from teccl_msccl.program.check import check
from teccl_msccl.program.lower import lower
from teccl_msccl.program.simulate import simulate
from teccl_msccl.schedule.schedule import Schedule

PRESETS = ("dgx1", "dgx-a100", "dgx-a100x2", "dgx-h100x2", "ndv2x2", "mi250x", "star-8", "full-8", "torus-4x4")
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")
SECONDS, MEGABYTES = 10.0, 2000


def allowed(size: str) -> float:
    """How much longer than its schedule a program may take."""
    return 1.05 if parse_size(size) >= 64e6 else 1.10


def row(label: str, schedule: Schedule, target: str, most: float) -> bool:
    """Lower, check and simulate once, print it, and say whether all targets are met."""
    began = time.monotonic()
    try:
        program = lower(schedule, target)
    except Refused as refusal:
        print(f"{label} {target:8} refused: {refusal}")
        return False
    lowered = time.monotonic()
    right = check(program, root=schedule.demand.root).ok
    checked = time.monotonic()
    timing = simulate(program, schedule.topology, schedule.demand.size_bytes, neutral=True)
    ratio = timing.finish_us / schedule.finish_us
    good = right and ratio <= most and checked - began <= SECONDS
    print(
        f"{label} {target:8} {program.protocol:6} {'right' if right else 'WRONG'} {ratio:7.3f} ≤ {most:.2f} "
        f"{lowered - began:6.2f} {checked - lowered:6.2f}  {'ok' if good else 'MISSED'}",
        flush=True,
    )
    return good


def main() -> int:
    """Print every row; 1 if a target was missed."""
    options = argparse.ArgumentParser(description="Programs against their schedules")
    options.add_argument("--topologies", type=Path, help="a folder of topology JSONs (default: some presets)")
    options.add_argument("--sizes", default="1KB,64KB,1MB,64MB,1GB")
    options.add_argument("--targets", default="executor,msccl,rccl")
    asked = options.parse_args()
    names = [str(path) for path in sorted(asked.topologies.glob("*.json"))] if asked.topologies else PRESETS
    print(f"targets: right, the ratio as given, lowering and checking ≤ {SECONDS:g} s in all, ≤ {MEGABYTES} MB")
    good = []
    for name in names:
        topology = Topology.load(name)
        for collective in COLLECTIVES:
            for size in asked.sizes.split(","):
                schedule = synthesize(topology, collective, size, method="greedy", time_limit=1.0)
                label = f"{topology.name:18} {collective:14} {size:>5} {len(schedule.sends):6} sends"
                good += [row(label, schedule, target, allowed(size)) for target in asked.targets.split(",")]
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{sum(good)} of {len(good)} met, {megabytes:.0f} MB")
    return 0 if all(good) and megabytes <= MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
