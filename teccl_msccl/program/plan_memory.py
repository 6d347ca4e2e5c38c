"""The memory of all ranks in the abstract execution of a plan: who put what where, and whether that was in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .finding import Finding, error, warning
from .plan_clock import Block, Done, Event
from .plan_file import Part, PlanFile

#: Contributions: (rank, chunk of its input).
Content = frozenset[tuple[int, int]]

_BUFFER_NAMES = {"i": "input", "o": "output", "s": "scratch"}


class Place(NamedTuple):
    """A chunk's worth of a rank's memory (or a part's, see `PlanFile.parts`)."""

    rank: int
    buffer: str
    chunk: int


@dataclass
class _Cell:
    """What is at a place, who wrote it, and who has read it since."""

    content: Content | None = None
    written: Event | None = None
    reads: list[Event] = field(default_factory=list)


def root_in_place(plan: PlanFile) -> int | None:
    """The root of an in-place gather (whose output alone is written) or scatter (whose output alone is not); None: it
    does not show, or the plan is neither."""
    if not plan.inplace or plan.collective not in ("gather", "scatter"):
        return None
    parts = (part for gpu in plan.gpus for block in gpu.threadblocks for op in block.ops for part in op.targets)
    written = {rank for part in parts if part.buffer == "o" for rank in part.ranks}
    roots = written if plan.collective == "gather" else set(range(len(plan.gpus))) - written
    return roots.pop() if len(roots) == 1 else None


class Memory:
    """All cells; findings go to `report`."""

    def __init__(self, plan: PlanFile, blocks: list[list[Block]], report: Callable[[Finding], None]) -> None:
        self.plan, self.blocks, self.report = plan, blocks, report
        self.root = root_in_place(plan)
        self.cells: dict[Place, _Cell] = defaultdict(_Cell)
        for rank, gpu in enumerate(plan.gpus):
            for k in range(gpu.input_chunks):
                self.cells[self.place(rank, "i", k)].content = frozenset({(rank, k)})

    def place(self, rank: int, buffer: str, k: int) -> Place:
        """The one name of memory that has two names when the call is in place."""
        raw = Place(rank, buffer, k)
        if not self.plan.inplace or buffer == "s":
            return raw
        gpu = self.plan.gpus[rank]
        if self.plan.collective == "allgather":
            return Place(rank, "o", rank * gpu.input_chunks + k if buffer == "i" else k)
        if self.plan.collective == "reducescatter":
            return Place(rank, "i", rank * gpu.output_chunks + k if buffer == "o" else k)
        if self.plan.collective == "gather":  # the root's share only lies in the root's whole
            return Place(rank, "o", rank * gpu.input_chunks + k) if (buffer, rank) == ("i", self.root) else raw
        if self.plan.collective == "scatter":
            return Place(rank, "i", rank * gpu.output_chunks + k) if (buffer, rank) == ("o", self.root) else raw
        return Place(rank, "o", k)

    def _name(self, place: Place) -> str:
        return f"{_BUFFER_NAMES[place.buffer]} chunk {self.plan.chunk(place.chunk)} of rank {place.rank}"

    def content(self, rank: int, buffer: str, k: int) -> Content | None:
        return self.cells[self.place(rank, buffer, k)].content

    def read(self, block: Block, event: Event, part: Part, k: int) -> Content | None:
        """What is at the k-th chunk of `part`, of its first rank."""
        place = self.place(part.ranks[0], part.buffer, part.first + k)
        cell = self.cells[place]
        self._ordered(block, event, cell.written, place, "reads", "writes")
        if cell.content is None:
            self._wrong("empty", f"reads {self._name(place)}, where nothing has been written", event)
        cell.reads.append(event)
        self._entered(block, event, place.rank)
        return cell.content

    def write(
        self, block: Block, event: Event, part: Part, k: int, content: Content | None,
        done: frozenset[Done] = frozenset(),
    ) -> None:  # fmt: skip
        """Put `content` at the k-th chunk of `part`, of all its ranks; `done` are reads that are known to be over."""
        for rank in part.ranks:
            place = self.place(rank, part.buffer, part.first + k)
            cell = self.cells[place]
            self._ordered(block, event, cell.written, place, "writes", "writes")
            for read in cell.reads:
                if (read, place) in done or (read, place) in block.known_done:
                    continue
                self._ordered(block, event, read, place, "writes", "reads")
            self._entered(block, event, rank)
            cell.content, cell.written, cell.reads = content, event, []

    def at_rest(self) -> None:
        """When a rank's launch ends, its memory must be at rest: all that others did there, and what leaves it."""
        known, softly = [], []
        for blocks in self.blocks:
            for block in blocks:
                block.meet()
            known.append(np.maximum.reduce([block.known for block in blocks]) if blocks else None)
            softly.append(np.maximum.reduce([block.weak_known for block in blocks]) if blocks else None)
        for place, cell in self.cells.items():
            hard, soft = known[place.rank], softly[place.rank]
            for event in (cell.written, *cell.reads):
                if event is None or hard is None or soft is None or (event.rank == place.rank and not event.port):
                    continue
                if soft[event.clock] < event.tick:
                    text = f"uses {self._name(place)}, whose launch may have ended" + (
                        ": flush it" if event.port else ""
                    )
                    self._wrong("port" if event.port else "exit", text, event)
                elif hard[event.clock] < event.tick:
                    text = f"uses {self._name(place)}, whose launch is told so by a relaxed signal only"
                    self.report(warning("exit", text, event.rank, event.tb, event.op))

    def _ordered(self, block: Block, event: Event, other: Event | None, place: Place, verb: str, others: str) -> None:
        if other is None or block.knows(other) or (other.clock == event.clock and (event.port or other == event)):
            return  # a port does one thing after another
        if other.port:
            port = f"a port {others} (gpu {other.rank} tb {other.tb} op {other.op})"
            text = f"{verb} {self._name(place)}, which {port}: flush or wait"
            self._wrong("port", text, event)
        elif other.clock == block.number:
            self._wrong("race", f"{verb} {self._name(place)}, which op {other.op} {others}, with no nop between", event)
        else:
            text = (
                f"{verb} {self._name(place)}, which gpu {other.rank} tb {other.tb} op {other.op} {others}, in no order"
            )
            self._wrong("race", text, event)

    def _entered(self, block: Block, event: Event, rank: int) -> None:
        """Another's memory is the launch's once one of its threadblocks has said so."""
        if rank != block.rank and not any(block.known[other.number] for other in self.blocks[rank]):
            self._wrong("entry", f"uses rank {rank}'s memory before rank {rank} is known to have begun", event)

    def _wrong(self, code: str, text: str, event: Event) -> None:
        self.report(error(code, text, event.rank, event.tb, event.op))
