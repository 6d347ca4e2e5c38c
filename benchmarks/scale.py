"""Synthesis as clusters grow: python benchmarks/scale.py [--max-gpus 256] [--sizes 1KB 1MB 1GB] [--plot scale.svg]

Rail-optimised DGX H100 hosts (`dgx-h100`, `--network rail`): each row is a process of its own that composes the
cluster, synthesizes with the defaults (the time limit apart), which replays the schedule in the validator, writes the
schedule's JSON, lowers it for the executor and checks the program, or says why no file can hold it. Targets: seconds
from the topology's name to the validated schedule, peak memory until then, and at 1 GB the gap to the proven bound.
The plot needs 'teccl-msccl[report]'.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from teccl_msccl.program.program import Program
    from teccl_msccl.schedule.schedule import Schedule
    from teccl_msccl.synthesis.portfolio import Synthesis

COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")
SIZES = ("1KB", "1MB", "1GB")
GPUS_PER_HOST = 8
#: GPUs → seconds, megabytes that a synthesis may take (None: measured only), and the time limit it is given.
TARGETS: dict[int, tuple[float | None, float | None, float]] = {
    16: (None, None, 6),
    64: (10, None, 7),
    256: (60, None, 40),
    1024: (600, 8000, 60),
}
MOST_GAP = 0.05


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(gpus: int, collective: str, size: str) -> dict[str, Any]:
    """One row, in this process."""
    from teccl_msccl import Topology
    from teccl_msccl.collective.size import parse_size
    from teccl_msccl.errors import Refused
    from teccl_msccl.program.check import check
    from teccl_msccl.synthesis.portfolio import run
    from teccl_msccl.synthesis.problem import Problem

    began = time.monotonic()
    topology = Topology.load("dgx-h100", hosts=gpus // GPUS_PER_HOST, network="rail")
    synthesis = run(Problem(topology, collective, parse_size(size)), time_limit=TARGETS[gpus][2])
    row: dict[str, Any] = {
        "seconds": time.monotonic() - began,
        "cpu_s": time.process_time(),
        "peak_mb": peak_mb(),
        "finish_us": synthesis.schedule.finish_us,
        "bound_us": synthesis.bound_us,
        "gap": synthesis.gap,
        "method": synthesis.method,
        "sends": len(synthesis.schedule.sends),
        "json_mb": 0.0,
    }
    print(json.dumps({**row, "refused": "not lowered in time"}), flush=True)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "schedule.json"
        synthesis.schedule.write(file)
        row["json_mb"] = file.stat().st_size / 1e6
        began = time.monotonic()
        try:
            schedule, program = lowered(synthesis)
            if schedule is not synthesis.schedule:
                synthesis = synthesis.choosing(schedule)
                row |= {"finish_us": schedule.finish_us, "gap": synthesis.gap, "method": synthesis.method}
            row["lower_s"] = time.monotonic() - began
            began = time.monotonic()
            row["ok"] = check(program).ok
            row["check_s"] = time.monotonic() - began
            program.write(file.with_suffix(".xml"))
            row["xml_mb"] = file.with_suffix(".xml").stat().st_size / 1e6
        except Refused as refused:
            row["refused"] = str(refused)
    row["peak_all_mb"] = peak_mb()
    return row


def lowered(synthesis: Synthesis) -> tuple[Schedule, Program]:
    """The fastest schedule that a file can hold, and its program. Raises the first `Refused` where none can."""
    from teccl_msccl.errors import Refused
    from teccl_msccl.program.lower import lower

    refusals = []
    for schedule in synthesis.schedules:
        try:
            return schedule, lower(schedule)
        except Refused as refused:
            refusals.append(refused)
    raise refusals[0]


def missed(gpus: int, size: str, row: dict[str, Any]) -> list[str]:
    """The targets that a row does not reach."""
    seconds, megabytes, _ = TARGETS[gpus]
    out = []
    if seconds is not None and row["seconds"] > seconds:
        out.append("seconds")
    if megabytes is not None and row["peak_mb"] > megabytes:
        out.append("memory")
    if seconds is not None and size == "1GB" and row["gap"] > MOST_GAP:
        out.append("gap")
    if not row.get("ok", "refused" in row and gpus > 256):
        out.append("program")
    return out


def shown(row: dict[str, Any]) -> str:
    """What became of the program."""
    if "refused" in row:
        return f"refused: {row['refused']}"
    return f"lowered in {row['lower_s']:.1f} s, checked in {row['check_s']:.1f} s, XML {row['xml_mb']:.1f} MB"


def plot(rows: dict[str, list[tuple[int, float]]], file: Path) -> None:
    """Seconds over GPUs, the slowest size of each collective, both axes logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for collective, points in rows.items():
        slowest = {gpus: max(seconds for g, seconds in points if g == gpus) for gpus, _ in points}
        axes.loglog(list(slowest), list(slowest.values()), marker="o", label=collective)
    targets = [(gpus, seconds) for gpus, (seconds, _, _) in TARGETS.items() if seconds is not None]
    axes.loglog(*zip(*targets, strict=True), "k--", label="target")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("seconds to a validated schedule")
    axes.set_xticks(list(TARGETS), [str(gpus) for gpus in TARGETS])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(file, bbox_inches="tight")


def main() -> int:
    """Print every row; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--max-gpus", type=int, default=max(TARGETS))
    parser.add_argument("--min-gpus", type=int, default=min(TARGETS))
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--plot", type=Path, help="where to draw seconds over GPUs")
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(measured(int(asked.row[0]), asked.row[1], asked.row[2])))
        return 0
    print(f"{os.cpu_count()} cores; targets: 64 GPUs ≤ 10 s, 256 ≤ 60 s, 1,024 ≤ 600 s and 8 GB; gap ≤ 5 % at 1 GB")
    print(
        f"{'GPUs':>4} {'collective':14} {'size':>4} {'finish µs':>11} {'bound µs':>11} {'gap':>7} {'s':>6} "
        f"{'CPU s':>6} {'MB':>6} {'sends':>8} {'JSON MB':>8} {'found by':>10}  targets; program"
    )
    good, seconds = True, defaultdict(list)
    for gpus in (gpus for gpus in TARGETS if asked.min_gpus <= gpus <= asked.max_gpus):
        for collective in asked.collectives:
            for size in asked.sizes:
                command = [sys.executable, __file__, "--row", str(gpus), collective, size]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if not done.stdout:
                    print(f"{gpus:4} {collective:14} {size:>4}  failed: {done.stderr.strip()[-200:]}", flush=True)
                    good = False
                    continue
                row = json.loads(done.stdout.splitlines()[-1])
                if done.returncode:  # after the schedule, which is in the row
                    row |= {"ok": False, "refused": f"failed, {done.stderr.strip()[-200:] or done.returncode}"}
                short = missed(gpus, size, row)
                good &= not short
                seconds[collective].append((gpus, row["seconds"]))
                verdict = f"MISSED {', '.join(short)}" if short else "met" if TARGETS[gpus][0] else "none"
                print(
                    f"{gpus:4} {collective:14} {size:>4} {row['finish_us']:11.3f} {row['bound_us']:11.3f} "
                    f"{row['gap']:7.2%} {row['seconds']:6.1f} {row['cpu_s']:6.1f} {row['peak_mb']:6.0f} "
                    f"{row['sends']:8} {row['json_mb']:8.1f} {row['method']:>10}  {verdict}; {shown(row)}",
                    flush=True,
                )
    if asked.plot:
        plot(seconds, asked.plot)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
