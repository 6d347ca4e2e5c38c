"""Traces: what a rank did and when, beside what the simulation predicts, for Perfetto or chrome://tracing.

With TECCL_TRACE=DIR every rank writes DIR/rank-R.json when it ends: process "measured" has its events, process
"predicted" the busy threadblocks of the program's simulation, begun at the same time.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_text

if TYPE_CHECKING:
    from ..program.program import Program
    from .execution import Tracer

VARIABLE = "TECCL_TRACE"
#: Events that a rank keeps; later ones are left out.
MOST_EVENTS = 1_000_000
_events: dict[int, list[dict[str, Any]]] = {}


def tracer(rank: int, collective: str, nbytes: int, program: Program) -> Tracer | None:
    """What to tell of each event of a collective, None where nothing is traced."""
    if not os.environ.get(VARIABLE):
        return None
    if not _events:
        atexit.register(write)
    mine = _events.setdefault(rank, [])
    began = time.perf_counter()

    def add(kind: str, peer: int, nbytes: int, begin: float, end: float) -> None:
        if len(mine) < MOST_EVENTS:
            name = f"{kind} {peer}" if peer >= 0 else kind
            mine.append(_event(name, collective, rank, 0, begin, end - begin, {"peer": peer, "bytes": nbytes}))

    mine.append(_event(f"{collective} {nbytes} bytes", program.name, rank, 1, began, 0.0, {"bytes": nbytes}))
    return add


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
        named = {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}, measured"}}
        write_text(directory / f"rank-{rank}.json", json.dumps({"traceEvents": [named, *events]}))
