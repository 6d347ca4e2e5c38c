"""The simulated timeline as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

One process holds the links, one thread each; every GPU is a process with its threadblocks as threads. Times are in µs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files import write_text
from ..program.plan_file import PlanFile
from ..program.program import SENDING, Program
from ..program.simulate import ProgramTiming, Timeline
from ..program.simulate_plan import PlanTiming
from ..topology.model import Topology

_LINKS = 0


def write_trace(
    path: str | Path, program: Program, topology: Topology, timeline: Timeline, timing: ProgramTiming
) -> None:
    """Write the trace of `timeline`, atomically; steps on the critical path are marked."""
    events = list(trace_events(program, topology, timeline, timing))
    about = {
        "program": program.name,
        "topology": topology.name,
        "finish_us": timing.finish_us,
        "iterations": f"{timeline.iterations} of {timeline.of}",
    }
    _write(path, events, about)


def write_plan_trace(path: str | Path, plan: PlanFile, topology: Topology, timing: PlanTiming) -> None:
    """Write the trace of a simulated MSCCL++ plan, atomically: a slice for every operation that moves data."""
    about = {"program": plan.name, "topology": topology.name, "finish_us": timing.finish_us}
    _write(path, list(plan_trace_events(plan, topology, timing)), about)


def plan_trace_events(plan: PlanFile, topology: Topology, timing: PlanTiming) -> Iterator[dict[str, Any]]:
    """The events of `write_plan_trace`."""
    yield _name("process_name", _LINKS, 0, "links")
    for id in sorted({move.link for move in timing.transfers}):
        yield _name("thread_name", _LINKS, id, link_name(topology, id))
    for gpu, g in enumerate(plan.gpus):
        yield _name("process_name", gpu + 1, 0, f"GPU {gpu}")
        for tb in range(len(g.threadblocks)):
            yield _name("thread_name", gpu + 1, tb, f"tb {tb}")
    critical = {(step.gpu, step.tb, step.step) for step in timing.critical_path}
    for step in timing.steps:
        name = plan.gpus[step.gpu].threadblocks[step.tb].ops[step.step].name
        where = {"gpu": step.gpu, "tb": step.tb, "op": step.step, "waited for": step.why}
        kind = "critical" if (step.gpu, step.tb, step.step) in critical else name
        yield _slice(name, kind, step.gpu + 1, step.tb, step.start_us, step.end_us, where)
    for move in timing.transfers:
        name = plan.gpus[move.gpu].threadblocks[move.tb].ops[move.op].name
        where = {"gpu": move.gpu, "tb": move.tb, "op": move.op}
        yield _slice(name, name, _LINKS, move.link, move.start_us, move.end_us, where)


def _slice(
    name: str, kind: str, process: int, thread: int, start_us: float, end_us: float, about: dict[str, Any]
) -> dict[str, Any]:
    return {"name": name, "ph": "X", "ts": start_us, "dur": end_us - start_us, "cat": kind, "args": about,
            "pid": process, "tid": thread}  # fmt: skip


def _write(path: str | Path, events: list[dict[str, Any]], about: dict[str, Any]) -> None:
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}) + "\n")


def trace_events(
    program: Program, topology: Topology, timeline: Timeline, timing: ProgramTiming
) -> Iterator[dict[str, Any]]:
    """The events: names of processes and threads, then a slice for every step, and one for every link that a send
    crosses (its whole transfer, latency left out)."""
    yield _name("process_name", _LINKS, 0, "links")
    used = sorted({link for route in timeline.routes.values() for link in route})
    for id in used:
        yield _name("thread_name", _LINKS, id, link_name(topology, id))
    for gpu, g in enumerate(program.gpus):
        yield _name("process_name", gpu + 1, 0, f"GPU {gpu}")
        for tb, block in enumerate(g.threadblocks):
            yield _name(
                "thread_name", gpu + 1, tb, f"tb {tb}: to {block.send}, from {block.recv}, channel {block.chan}"
            )
    critical = {(step.gpu, step.tb, step.step, step.iteration) for step in timing.critical_path}
    for step in timeline.steps:
        what = program.gpus[step.gpu].threadblocks[step.tb].steps[step.step]
        slice = {
            "name": f"{what.type} {what.dstbuf if what.type == 'r' else what.srcbuf}"
            f"{what.dstoff if what.type == 'r' else what.srcoff}",
            "ph": "X",
            "ts": step.start_us,
            "dur": step.end_us - step.start_us,
            "cat": "critical" if (step.gpu, step.tb, step.step, step.iteration) in critical else what.type,
            "args": {"gpu": step.gpu, "tb": step.tb, "step": step.step, "iteration": step.iteration,
                     "chunks": what.cnt, "waited for": step.why},
        }  # fmt: skip
        yield {**slice, "pid": step.gpu + 1, "tid": step.tb}
        if what.type in SENDING:
            for link in timeline.routes.get((step.gpu, step.tb), ()):
                yield {**slice, "pid": _LINKS, "tid": link}


def link_name(topology: Topology, id: int) -> str:
    """ "GPU 0 → NVSwitch" and the like."""
    link = topology.link_by_id[id]
    return f"{node_name(topology, link.src)} → {node_name(topology, link.dst)}"


def node_name(topology: Topology, id: int) -> str:
    node = topology.node_by_id[id]
    if node.rank is not None:
        return f"GPU {node.rank}"
    host = f" of host {node.host}" if len(topology.hosts) > 1 and node.kind != "switch" else ""
    return f"{node.name or f'{node.kind} {node.id}'}{host}"


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
