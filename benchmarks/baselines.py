"""Ours against the field's algorithms on the same links: python benchmarks/baselines.py [TOPOLOGY…]

Each row is a collective of a size on a preset: how long each baseline takes against what `auto` finds in its time
limit (above 1: ours is faster), both timed by the event simulation, the baselines pipelined with the chunk count
that suits the size best. The target is that no baseline is faster by more than the search's indifference, 0.2 %.
"""

from __future__ import annotations

import os
import sys
import time

from teccl_msccl.errors import InputError
from teccl_msccl.synthesis.ask import ask
from teccl_msccl.synthesis.baselines.search import BASELINES
from teccl_msccl.synthesis.portfolio import run
from teccl_msccl.topology.model import Topology

TOPOLOGIES = ("teccl-dgx1", "dgx1", "dgx-a100", "mi300x", "ring-8", "mesh-4x4", "teccl-ndv2x2", "dgx-a100x2")
COLLECTIVES = ("allgather", "allreduce", "alltoall", "broadcast")
SIZES = ("1KB", "1MB", "100MB")
SECONDS = 10.0
TARGET = 1 - 2e-3


def row(topology: Topology, collective: str, size: str) -> float:
    """Print one row; the quickest baseline's time over ours."""
    problem = ask(topology, collective, size)
    began = time.monotonic()
    ours = run(problem, time_limit=SECONDS)
    seconds = time.monotonic() - began
    ratios = {}
    for name, baseline in BASELINES.items():
        if collective in baseline.serves:
            try:
                theirs = run(problem, method=name, time_limit=SECONDS).schedule
            except InputError:  # hierarchical wants several hosts
                continue
            ratios[name] = theirs.finish_us / ours.schedule.finish_us
    cells = " ".join(f"{ratios[name]:9.3f}" if name in ratios else f"{'–':>9}" for name in BASELINES)
    least = min(ratios.values())
    print(
        f"{topology.name:14} {collective:10} {size:>6} {ours.schedule.finish_us:11.3f} {ours.gap:8.2%} {seconds:6.1f} "
        f"{ours.method:>10} {cells}  {'ok' if least >= TARGET else 'MISSED'}",
        flush=True,
    )
    return least


def main(names: list[str]) -> int:
    """Print every row; 1 if some baseline is faster than ours."""
    print(f"target: every baseline at {TARGET} of our time or more; ours in ≤ {SECONDS:g} s, {os.cpu_count()} cores")
    heads = " ".join(f"{name[:9]:>9}" for name in BASELINES)
    print(f"{'topology':14} {'collective':10} {'size':>6} {'ours µs':>11} {'gap':>8} {'s':>6} {'method':>10} {heads}")
    least = [
        row(Topology.load(name), collective, size)
        for name in names or TOPOLOGIES
        for collective in COLLECTIVES
        for size in SIZES
    ]
    print(f"{sum(ratio >= TARGET for ratio in least)} of {len(least)} rows on target; least ratio {min(least):.3f}")
    return 0 if min(least) >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
