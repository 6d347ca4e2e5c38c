"""Traces: what a rank did and when, beside what the simulation predicts, for Perfetto or chrome://tracing.

With TECCL_TRACE=DIR every rank of the job writes DIR/rank-R.json when it ends: process "measured" has its events;
process "predicted" has, begun at the same times, when the simulation of the program on the topology it was made for
(or all joined to all) sees this rank's threadblocks end, and the steps of the critical path.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_text

if TYPE_CHECKING:
    from ..program.program import Program
    from .messages import Tracer

VARIABLE = "TECCL_TRACE"
#: Events that a rank keeps; later ones are left out.
MOST_EVENTS = 1_000_000
#: Process numbers of predictions, and the lane of the critical path there.
PREDICTED = 1_000_000
CRITICAL = 100_000
_events: dict[int, list[dict[str, Any]]] = {}  # by rank of the job, not of a group


def tracer(job_rank: int, rank: int, call: int, collective: str, nbytes: int, program: Program) -> Tracer | None:
    """What to tell of each event of a collective, None where nothing is traced. `rank` is that in the group; `call`
    numbers the collectives of the whole job's group, −1 for those of others."""
    if not os.environ.get(VARIABLE):
        return None
    if not _events:
        atexit.register(write)
    mine = _events.setdefault(job_rank, [])
    began = time.perf_counter()

    def add(kind: str, peer: int, nbytes: int, begin: float, end: float, message: str = "") -> None:
        if len(mine) < MOST_EVENTS:
            name = f"{kind} {peer}" if peer >= 0 else kind
            more: dict[str, Any] = {"peer": peer, "bytes": nbytes}
            if message and call >= 0:  # the same at both of its ends
                more["message"] = f"{call}:{message}"
            mine.append(_event(name, collective, job_rank, 0, begin, end - begin, more))

    if len(mine) < MOST_EVENTS:
        what = f"{collective} of {nbytes} bytes"
        for lane, name, start_us, length_us in _predicted(program, nbytes, rank):
            event = _event(
                name, what, PREDICTED + job_rank, lane, began + start_us / 1e6, length_us / 1e6, {"bytes": nbytes}
            )
            mine.append(event)
    return add


@lru_cache(64)
def _predicted(program: Program, nbytes: int, rank: int) -> tuple[tuple[int, str, float, float], ...]:
    """(lane, name, start µs, length µs) of what the simulation says of a rank; nothing where it does not fit."""
    from ..errors import InputError, Refused
    from ..program.simulate import simulate
    from ..topology.catalog import load

    try:
        topology = load(os.environ.get("TECCL_TOPOLOGY") or f"full-{program.nranks}").topology
        timing = simulate(program, topology, nbytes)
    except (InputError, Refused):
        return ()
    ends = [(use.tb, f"tb {use.tb}", 0.0, use.finish_us) for use in timing.threadblocks if use.gpu == rank]
    critical = [
        (CRITICAL, f"tb {step.tb} step {step.step} ({step.why})", step.start_us, step.end_us - step.start_us)
        for step in timing.critical_path
        if step.gpu == rank
    ]
    return (*ends, *critical)


def _event(
    name: str, category: str, rank: int, lane: int, at: float, seconds: float, more: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name, "cat": category, "ph": "X", "pid": rank, "tid": lane,
        "ts": at * 1e6, "dur": seconds * 1e6, "args": more,
    }  # fmt: skip


def write() -> None:
    """Write what has been traced so far, a file a rank."""
    directory = Path(os.environ.get(VARIABLE, "."))
    directory.mkdir(parents=True, exist_ok=True)
    for rank, events in _events.items():
        named = [
            {"name": "process_name", "ph": "M", "pid": first + rank, "args": {"name": f"rank {rank}, {what}"}}
            for first, what in ((0, "measured"), (PREDICTED, "predicted"))
        ]
        write_text(directory / f"rank-{rank}.json", json.dumps({"traceEvents": [*named, *events], "clock": _clock()}))


def _clock() -> str:
    """The same for ranks whose times can be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
