"""The main job's targets, measured: python benchmarks/main_job.py

Each row is one `teccl-msccl synth` in a process of its own, with CBC and two threads: the schedule's finish against
its target, the proven gap, wall seconds and peak memory. The last rows check and execute programs for two DGX A100
under mpirun (skipped where it is missing).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS, MEGABYTES = 30, 1000
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True)
class Row:
    """A synthesis and the finish time that it must reach, in µs (None: any)."""

    topology: str
    collective: str
    size: str
    target_us: float | None


# 1 GB: within 1 % of the bandwidth bound, 7/8 GB into a GPU at 150 GB/s.
ROWS = (
    Row("teccl-dgx1", "allgather", "1MB", 6.6),
    Row("teccl-dgx1", "allgather", "1GB", 1.01 * 5833.3333),
    *(Row("dgx-a100x2", collective, "1MB", None) for collective in COLLECTIVES),
)


def teccl(*arguments: str) -> list[str]:
    """The command line that runs teccl-msccl with this interpreter."""
    return [sys.executable, "-c", "from teccl_msccl.cli import main; main()", *arguments]


def synthesize(row: Row, directory: Path) -> bool:
    """Run one row, print it, and say whether it reached its target."""
    file = directory / f"{row.topology}-{row.collective}-{row.size}.xml"
    began = time.monotonic()
    done = subprocess.run(
        teccl("synth", row.topology, row.collective, "--size", row.size, "-o", str(file), "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        print(f"{row.topology:12} {row.collective:15} {row.size:>5}  failed: {done.stderr.strip()}")
        return False
    result = json.loads(done.stdout)
    good = row.target_us is None or result["finish_us"] <= row.target_us
    good = good and (row.target_us is None or (seconds <= SECONDS and result["peak_rss_mb"] <= MEGABYTES))
    target = "" if row.target_us is None else f"≤ {row.target_us:.2f}"
    print(
        f"{row.topology:12} {row.collective:15} {row.size:>5} {target:>10} {result['finish_us']:10.3f} "
        f"{result['bound_us']:10.3f} {result['gap']:8.2%} {result['program_finish_us']:10.2f} {result['method']:>7} "
        f"{seconds:6.1f} {result['peak_rss_mb']:6.0f}  {'ok' if good else 'MISSED'}"
    )
    return good


def execute(file: Path) -> bool:
    """Run a program's every element under mpirun -np 16 and print what came of it."""
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [
            "mpirun",
            "--oversubscribe",
            "-np",
            "16",
            *teccl("run", str(file), "--size", "64KB", "--iters", "1", "--json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    wrong = sum(row["wrong"] for row in json.loads(done.stdout)["rows"]) if done.returncode == 0 else done.stderr
    print(f"mpirun -np 16 run {file.name}: {wrong} wrong elements, {time.monotonic() - began:.1f} s")
    return done.returncode == 0 and wrong == 0


def main() -> int:
    """Print every row; 1 if a target was missed."""
    print(f"targets: finish as given, each in ≤ {SECONDS} s and ≤ {MEGABYTES} MB, solver CBC, {os.cpu_count()} cores")
    print(
        f"{'topology':12} {'collective':15} {'size':>5} {'target µs':>10} {'finish µs':>10} {'bound µs':>10} "
        f"{'gap':>8} {'program µs':>10} {'method':>7} {'s':>6} {'MB':>6}"
    )
    with tempfile.TemporaryDirectory() as directory:
        good = [synthesize(row, Path(directory)) for row in ROWS]
        if shutil.which("mpirun"):
            good += [execute(file) for file in sorted(Path(directory).glob("dgx-a100x2*.xml"))]
        else:
            print("mpirun is missing: pip install 'teccl-msccl[mpi]' to execute the programs")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
