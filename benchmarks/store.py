"""Targets and results of the store: `python benchmarks/store.py [--quick]`.

--quick leaves the build of two DGX A100 out.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

from teccl_msccl.store.build import Plan, build, sizes_between
from teccl_msccl.store.candidate import Candidate
from teccl_msccl.store.engine import engine_named
from teccl_msccl.store.store import Lookup, Store
from teccl_msccl.topology.model import Topology

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")


def told(what: str, target: str, result: str, good: bool) -> bool:
    print(f"{what:48} {target:12} {'ok' if good else 'MISSED':7} {result}", flush=True)
    return good


def progress(done: int, total: int, candidate: Candidate) -> None:
    print(f"\r{done}/{total} {candidate.job!s:60.60}", end="", file=sys.stderr, flush=True)


def lookups(root: str) -> bool:
    """A running job's question, of a store for a DGX-1."""
    store, topology = Store(root), Topology.load("dgx1")
    with engine_named("local", 2, None) as engine:
        build(store, topology, Plan(COLLECTIVES, (1000, 1_000_000), method="greedy", seconds=0.0), engine, progress)
    lookup = Lookup(store.find(topology))
    times = []
    for number in range(2000):
        begin = time.perf_counter()
        assert lookup.find(COLLECTIVES[number % 4], 500 * number) is not None
        times.append(time.perf_counter() - begin)
    median_us = statistics.median(times) * 1e6
    return told("lookup of a program", "≤ 20 µs", f"{median_us:.2f} µs", median_us <= 20)


def two_dgx_a100(root: str) -> bool:
    store, topology = Store(root), Topology.load("dgx-a100", hosts=2)
    began = time.monotonic()
    with engine_named("local", 2, None) as engine:
        entries = build(store, topology, Plan(COLLECTIVES, sizes_between(10**3, 10**9, 8)), engine, progress)
    minutes = (time.monotonic() - began) / 60
    problems = store.problems(store.find(topology).folder)
    result = f"{minutes:.1f} min, {len(entries)} ranges, {len(problems)} problems"
    return told("build: DGX A100 × 2, 4 collectives × 8 sizes", "≤ 10 min", result, minutes <= 10 and not problems)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        good = [lookups(directory)]
        if "--quick" not in sys.argv:
            good.append(two_dgx_a100(directory))
    sys.exit(0 if all(good) else 1)
