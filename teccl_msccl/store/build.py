"""Building: programs for every size, the ranges in which each is fastest, and their way into the store."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..collective.demand import ROOTED
from ..errors import InputError, Refused
from ..program import xml
from ..program.check import check
from ..program.program import Program
from ..program.simulate import simulate
from ..program.targets import target_named
from ..topology.model import Topology
from .candidate import Candidate, Job, made
from .manifest import Entry
from .store import Machine, Store

#: What every search is compared with, where they do its collective, and what serves where it is faster.
BASELINES = ("ring", "tree", "direct")
#: Bisections of the sizes between which one program overtakes another.
_BISECTIONS = 5


@dataclass(frozen=True)
class Plan:
    """What to build for a machine: `sizes` in bytes, ascending; `seconds` for the search at each."""

    collectives: Sequence[str]
    sizes: Sequence[int]
    targets: Sequence[str] = ("executor",)
    method: str = "auto"
    seconds: float = 10.0
    root: int = 0

    def jobs(self, machine: Machine) -> list[Job]:
        """Everything to be made, the searches first: they take longest."""
        from ..synthesis.baselines.search import BASELINES as KNOWN

        text = json.dumps(machine.topology.to_json(), sort_keys=True)
        return [
            Job(text, collective, machine.root_in_files(self.root) if collective in ROOTED else None, size, target,
                method, self.seconds if method == self.method else 0.0)
            for method in dict.fromkeys((self.method, *BASELINES))
            for target in self.targets
            for collective in self.collectives
            for size in reversed(self.sizes)
            if method not in KNOWN or collective in KNOWN[method].serves
        ]  # fmt: skip


def sizes_between(first: int, last: int, number: int) -> tuple[int, ...]:
    """`number` sizes from first to last, evenly apart in powers."""
    if not 1 <= first <= last or number < 1:
        raise InputError(f"sizes {first} to {last} bytes, {number} of them; use 1 or more, the smaller first")
    if number == 1 or first == last:
        return (last,)
    return tuple(dict.fromkeys(round(first * (last / first) ** (k / (number - 1))) for k in range(number)))


def build(
    store: Store, topology: Topology, plan: Plan, engine: Executor, report: Callable[[int, int, Candidate], None]
) -> list[Entry]:
    """Make what is missing of `plan` and file it; the new entries. Killed, it goes on where it was when called again.

    Raises `Refused` for a collective for which no program came out, `InputError` where the store cannot be written.
    """
    machine = store.open(topology)
    folder = str(machine.folder / "candidates")
    jobs = plan.jobs(machine)
    pending = [engine.submit(made, job, folder) for job in jobs]
    try:
        for done, future in enumerate(as_completed(pending), 1):
            report(done, len(jobs), future.result())
    except BrokenProcessPool:
        raise Refused("a worker died (killed, or out of memory?); run the same store build again to go on") from None
    finally:
        for future in pending:
            future.cancel()
    candidates = [future.result() for future in pending]
    filed: list[tuple[Entry, bytes]] = []
    groups = dict.fromkeys((job.collective, job.root, job.target) for job in jobs)
    for collective, root, target in groups:
        mine = [c for c in candidates if (c.job.collective, c.job.root, c.job.target) == (collective, root, target)]
        filed += _ranges(machine.topology, plan, mine)
    store.file(machine, set(groups), filed)
    return [entry for entry, _ in filed]


def _ranges(topology: Topology, plan: Plan, candidates: list[Candidate]) -> list[tuple[Entry, bytes]]:
    """The fastest candidate of every size, and where one overtakes the other."""
    good = [candidate for candidate in candidates if not candidate.refused]
    if not good:
        raise Refused(f"{candidates[0].job}: {candidates[0].refused}")
    programs = [candidate.program() for candidate in good]

    @cache
    def time_us(number: int, size: int) -> float:
        timing = simulate(programs[number], topology, size)
        return timing.finish_us + timing.launch_us

    def near(size: int) -> list[int]:
        position = plan.sizes.index(size)
        window = plan.sizes[max(0, position - 1) : position + 2]
        return [number for number, candidate in enumerate(good) if candidate.job.size_bytes in window]

    winners = [min(near(size), key=lambda number: time_us(number, size)) for size in plan.sizes]
    starts = [(0, winners[0])]
    for smaller, larger, before, after in zip(plan.sizes, plan.sizes[1:], winners, winners[1:], strict=False):
        if after != before:
            starts.append((_crossover(time_us, before, after, smaller, larger), after))
    ends = [start for start, _ in starts[1:]] + [plan.sizes[-1] + 1]
    entries = []
    for (start, number), end in zip(starts, ends, strict=True):
        inside = [size for size in plan.sizes if start <= size < end] or [good[number].job.size_bytes]
        rows = [_prediction(good, time_us, near(size), number, size) for size in inside]
        entries.append(_entry(good[number], programs[number], start, end, rows))
    return entries


def _crossover(time_us: Callable[[int, int], float], before: int, after: int, smaller: int, larger: int) -> int:
    """The smallest size at which `after` is the faster of the two, to within a few per cent."""
    for _ in range(_BISECTIONS):
        middle = round(math.sqrt(smaller * larger))
        if not smaller < middle < larger:
            break
        if time_us(after, middle) < time_us(before, middle):
            larger = middle
        else:
            smaller = middle
    return larger


def _prediction(
    good: list[Candidate], time_us: Callable[[int, int], float], near: list[int], number: int, size: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"size_bytes": size, "program_us": round(time_us(number, size), 3)}
    baselines = [other for other in near if good[other].job.method in BASELINES]
    if baselines:
        best = min(baselines, key=lambda other: time_us(other, size))
        row |= {"baseline": good[best].job.method, "baseline_us": round(time_us(best, size), 3)}
    bounds = [candidate.bound_us for candidate in good if candidate.job.size_bytes == size]
    if bounds:
        row["bound_us"] = round(max(bounds), 3)
    return row


def _entry(
    candidate: Candidate, program: Program, start: int, end: int, rows: list[dict[str, Any]]
) -> tuple[Entry, bytes]:
    exclusive = target_named(program.target).exclusive_max_bytes
    program = replace(program, min_bytes=start, max_bytes=end if exclusive else end - 1)
    if not (verdict := check(program, root=candidate.job.root)).ok:
        first = next(finding for finding in verdict.findings if finding.level == "error")
        raise Refused(f"{candidate.job}: {first.code}: {first.text}")
    data = xml.to_text(program).encode()
    digest = hashlib.sha256(data).hexdigest()
    job = candidate.job
    mode = "both" if program.inplace and program.outofplace else "inplace" if program.inplace else "outofplace"
    entry = Entry(
        collective=job.collective,
        root=job.root,
        target=job.target,
        mode=mode,
        protocol=program.protocol,
        min_bytes=start,
        max_bytes=end,
        file=f"{job.collective}-{digest[:16]}.xml",
        sha256=digest,
        nranks=program.nranks,
        nchunks=program.nchunks,
        method=candidate.method,
        made_for_bytes=job.size_bytes,
        predicted=tuple(rows),
    )
    return entry, data
