"""How good the schedules are: python benchmarks/quality.py [--topology ring_8] [--collective allgather] [--size 1MB]

Every sample topology × {1 KB, 1 MB, 1 GB} × {allgather, reduce_scatter} and {1 KB, 1 GB} × alltoall, TE-CCL's
published allgather rows and allreduce at 1 GB. Each row is one search in a process of its own, on two threads, and
prints target, result, gap to the proven bound, seconds, peak memory and the method that found it. Exit code 1 if a
target was missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEGABYTES = 2000
MEDIAN_SECONDS, WORST_SECONDS = 10, 60

#: The best time of ForestColl's trees (replayed) and TACOS v1.3.0 for a 1 MB allgather, without switch multicast, µs.
PEERS_1MB = {
    "ring_8": 9.25,
    "fc_8": 3.0,
    "star_8": 18.0,
    "hypercube_8": 6.781,
    "dgx1_1": 7.259,
    "dgxa100_1": 3.6167,
    "ndv2_2": 42.934,
    "torus2d_4x4": 5.453,
    "mesh2d_4x4": 9.875,
    "h100rail_2": 5.5222,
    "dgxa100_2": 7.2583,
    "mi250_2": 11.1375,
    "dgx2_2": 19.75,
    "ndv2_4": 64.117,
    "dgxa100_4": 12.0667,
}
#: Where 1 MB must take at least 10 % less time than these peers, and where at most 3 % more than the bound.
MUCH_BETTER = ("dgxa100_2", "dgxa100_4", "h100rail_2", "mi250_2", "dgx2_2")
NEAR_BOUND = ("ring_8", "fc_8", "star_8", "dgxa100_1", "mesh2d_4x4", "dgx1_1")
#: TE-CCL's published allgather finish times in µs (arXiv 2305.13479's repository, the best row per size; those of
#: NDv2×2 from the paper's table, as size / algbw; from 16 MB up DGX2×2 leaves α out, so 1 % more will do).
PUBLISHED = {
    "dgx2_2": {
        "1KB": 4.006,
        "4KB": 4.03,
        "16KB": 4.084,
        "64KB": 4.32,
        "256KB": 5.376,
        "1MB": 10.75,
        "4MB": 33.0,
        "16MB": 1.01 * 124.0,
        "64MB": 1.01 * 496.0,
        "256MB": 1.01 * 1984.0,
        "1GB": 1.01 * 7750.0,
    },
    "ndv2_4": {
        "1KB": 5.4495,
        "4KB": 5.516,
        "16KB": 5.81,
        "64KB": 8.32,
        "256KB": 20.96,
        "1MB": 69.375,
        "4MB": 280.0,
        "16MB": 1040.0,
        "64MB": 4160.0,
        "256MB": 16640.0,
        "1GB": 65000.0,
    },
    "ndv2_2": {
        "1KB": 1 / 0.24,
        "4KB": 4 / 0.94,
        "16KB": 16 / 3.6,
        "64KB": 64 / 10.53,
        "256KB": 256 / 17.39,
        "1MB": 1000 / 20.51,
        "4MB": 4000 / 21.05,
        "16MB": 16000 / 22.86,
        "64MB": 64000 / 22.86,
        "1GB": 1e6 / 22.86,
    },
}
#: Bandwidth of the best allreduce made of trees with free roots, GB/s.
ALLREDUCE_GBPS = {"ndv2_4": 8.3333, "dgx2_2": 67.74, "dgxa100_4": 133.33, "mi250_2": 177.07, "mesh2d_4x4": 80.0}


@dataclass(frozen=True)
class Row:
    """A search, and what its finish must not exceed: µs, a share of the bound, or both."""

    topology: str
    collective: str
    size: str
    at_most_us: float | None = None
    at_most_bounds: float | None = None

    def target_us(self, bound_us: float) -> float:
        shares = [] if self.at_most_bounds is None else [self.at_most_bounds * bound_us]
        return min([*shares, *([] if self.at_most_us is None else [self.at_most_us])])


def rows() -> Iterator[Row]:
    for topology, peer_us in PEERS_1MB.items():
        for collective in ("allgather", "reduce_scatter"):
            for size in ("1KB", "1GB"):
                yield Row(topology, collective, size, at_most_bounds=1.01)
            yield Row(
                topology,
                collective,
                "1MB",
                at_most_us=peer_us * (0.9 if topology in MUCH_BETTER else 1.0005),  # peers are given to 4 digits
                at_most_bounds=1.03 if topology in NEAR_BOUND else None,
            )
    for topology in (*PEERS_1MB, "ndv2_2_tecclbug"):
        for size in ("1KB", "1GB"):
            yield Row(topology, "alltoall", size, at_most_bounds=1.01)
    for topology, times in PUBLISHED.items():
        for size, finish_us in times.items():
            yield Row(topology, "allgather", size, at_most_us=finish_us)
    for topology, rate in ALLREDUCE_GBPS.items():
        yield Row(topology, "allreduce", "1GB", at_most_us=1.02 * 1e6 / rate)


SEARCH = """
import json, resource, sys, time
from teccl_msccl import Topology
from teccl_msccl.collective.size import parse_size
from teccl_msccl.synthesis.portfolio import run
from teccl_msccl.synthesis.problem import Problem
asked = json.loads(sys.argv[1])
problem = Problem(Topology.load(asked["topology"]), asked["collective"], parse_size(asked["size"]))
found = run(problem, method=asked["method"], time_limit=asked["time_limit"])
print(json.dumps({
    "finish_us": found.schedule.finish_us, "bound_us": found.bound_us, "gap": found.gap, "seconds": found.seconds,
    "method": found.method, "nchunks": found.schedule.demand.nchunks, "sends": len(found.schedule.sends),
    "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "cpu": time.process_time()}))
"""


def search(row: Row, file: Path, method: str, time_limit: float) -> dict[str, float] | str:
    """The figures of the row's search in a process of its own, or what went wrong."""
    asked = {
        "topology": str(file),
        "collective": row.collective,
        "size": row.size,
        "method": method,
        "time_limit": time_limit,
    }
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, json.dumps(asked)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def known(log: Path | None) -> dict[str, dict[str, float]]:
    """The figures of earlier runs, by row."""
    if log is None or not log.exists():
        return {}
    return {entry["row"]: entry["figures"] for entry in map(json.loads, log.read_text().splitlines())}


def measure(row: Row, figures: dict[str, float] | str) -> tuple[bool, float]:
    """Print the row, and say whether it reached its target and how long it took."""
    name = f"{row.topology:12} {row.collective:14} {row.size:>6}"
    if isinstance(figures, str):
        print(f"{name}  failed: {figures}", flush=True)
        return False, 0.0
    target = row.target_us(figures["bound_us"])
    good = figures["finish_us"] <= target * (1 + 1e-9) and figures["rss_mb"] <= MEGABYTES
    verdict = "ok" if good else f"MISSED by {figures['finish_us'] / target - 1:.2%}"
    print(
        f"{name} {target:11.3f} {figures['finish_us']:11.3f} {figures['bound_us']:11.3f} {figures['gap']:8.2%} "
        f"{figures['seconds']:6.1f} {figures['cpu']:6.1f} {figures['rss_mb']:6.0f} {figures['nchunks']:6} "
        f"{figures['method']:>8}  {verdict}",
        flush=True,
    )
    return good, figures["seconds"]


def main() -> int:
    """Print every row asked for; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", type=Path, required=True, help="folder of the sample topologies as NAME.json")
    parser.add_argument("--topology", action="append", help="only these rows (may be repeated)")
    parser.add_argument("--collective", action="append")
    parser.add_argument("--size", action="append")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds per row")
    parser.add_argument("--log", type=Path, help="figures are kept here as they come, and not measured again")
    asked = parser.parse_args()
    chosen = [
        row
        for row in dict.fromkeys(rows())
        if (not asked.topology or row.topology in asked.topology)
        and (not asked.collective or row.collective in asked.collective)
        and (not asked.size or row.size in asked.size)
    ]
    print(
        f"{'topology':12} {'collective':14} {'size':>6} {'target µs':>11} {'finish µs':>11} {'bound µs':>11} "
        f"{'gap':>8} {'s':>6} {'cpu s':>6} {'MB':>6} {'chunks':>6} {'method':>8}"
    )
    results, done = [], known(asked.log)
    for row in chosen:
        key = f"{row.topology} {row.collective} {row.size} {asked.method} {asked.time_limit:g}"
        if key not in done:
            figures = search(row, asked.topologies / f"{row.topology}.json", asked.method, asked.time_limit)
            if isinstance(figures, str):
                results.append(measure(row, figures))
                continue
            done[key] = figures
            if asked.log is not None:
                with asked.log.open("a") as log:
                    log.write(json.dumps({"row": key, "figures": figures}) + "\n")
        results.append(measure(row, done[key]))
    if not results:
        print("no row matches")
        return 2
    seconds = [taken for _, taken in results]
    reached = sum(good for good, _ in results)
    print(
        f"{reached} of {len(results)} targets reached; median {statistics.median(seconds):.1f} s, worst "
        f"{max(seconds):.1f} s (targets: {MEDIAN_SECONDS} and {WORST_SECONDS} s, {MEGABYTES} MB)"
    )
    return 0 if reached == len(results) and max(seconds) <= WORST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
