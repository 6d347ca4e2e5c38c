"""Lifting, lowering's way back: the schedule that a program carries out, whoever made it."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from ..collective.demand import COLLECTIVES, ROOTED, Demand, demand_for
from ..errors import Refused
from ..schedule.foreign import ForeignSchedule, Hop, Pattern
from .check import check
from .placement import Layout, Place
from .program import READING, RECEIVING, SENDING, WRITING, Program, Step
from .targets import target_named

_REDUCES = frozenset({"re", "rrc", "rrs", "rrcs"})
#: More than any transfer takes: hops follow one another, until they are timed on a topology.
_APART_US = 1e9
#: Collectives whose nchunksperloop spans all ranks' shares.
_SHARED = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")


def lift(program: Program, where: str) -> ForeignSchedule:
    """What `program` sends, chunk by chunk, in an order that its waits allow; what becomes part of a sum is a
    reduction. Times are the topology's that it is put on.

    O(chunks moved). Raises `Refused` for a program that is not right, or whose collective has no schedule.
    """
    if program.collective not in COLLECTIVES:
        raise Refused(
            f"{where}: no schedule is known for coll {program.collective!r}, but for {', '.join(COLLECTIVES)}"
        )
    verdict = check(program)
    if not verdict.ok:
        first = next(finding for finding in verdict.findings if finding.level == "error")
        raise Refused(f"{where}: this program is not right: {first.code}: {first.text}; see `check`")
    share, rest = divmod(program.chunks_per_size, program.nranks if program.collective in _SHARED else 1)
    if rest or not share:
        raise Refused(f"{where}: {program.chunks_per_size} chunks are no whole shares of {program.nranks} ranks")
    root = verdict.root or 0
    demand = demand_for(program.collective, program.nranks, 1.0, share, root)
    run = _Run(program, demand)
    run.all()
    return ForeignSchedule(
        where=where,
        tool="MSCCL",
        labels=tuple(str(rank) for rank in range(program.nranks)),
        chunks=tuple(Pattern(chunk.origin, chunk.want, chunk.reduce) for chunk in demand.chunks),
        hops=tuple(Hop(hop.chunk, hop.src, hop.dst, at * _APART_US, hop.reduce) for at, hop in enumerate(run.hops)),
        rates=None,
        known=(program.collective, root if program.collective in ROOTED else 0, share),
    )


@dataclass
class _Hop:
    chunk: int
    src: int
    dst: int
    reduce: bool = False


@dataclass(frozen=True)
class _Value:
    """What a place holds: a chunk, and the hop that brought it, if it came as it is."""

    chunk: int
    hop: _Hop | None = None


@dataclass
class _Block:
    """A threadblock as it goes on: its next step, and the chunks of it that have moved."""

    rank: int
    tb: int
    step: int = 0
    moved: int = 0
    waiting: list[_Block] = field(default_factory=list)


class _Run:
    """One execution, with as many slots as it takes."""

    def __init__(self, program: Program, demand: Demand) -> None:
        self.program = program
        self.layout = Layout(demand)
        self.inplace = not target_named(program.target).modes(program.inplace, program.outofplace)[1]
        self.hops: list[_Hop] = []
        self.places: list[dict[Place, _Value]] = [{} for _ in program.gpus]
        for chunk in demand.chunks:
            for rank in chunk.origin:
                place = self._memory(self.layout.input_place(chunk, rank), rank)
                self.places[rank][place] = _Value(chunk.id)
        self.wires: dict[tuple[int, int, int], deque[tuple[_Value, _Hop]]] = defaultdict(deque)
        self.blocks = [
            [_Block(rank, tb) for tb in range(len(gpu.threadblocks))] for rank, gpu in enumerate(program.gpus)
        ]
        self.receivers = {
            (threadblock.recv, rank, threadblock.chan): self.blocks[rank][tb]
            for rank, gpu in enumerate(program.gpus)
            for tb, threadblock in enumerate(gpu.threadblocks)
            if threadblock.recv >= 0
        }

    def _memory(self, place: Place, rank: int) -> Place:
        return self.layout.aliased(place, rank) if self.inplace else place

    def all(self) -> None:
        """Threadblocks in turn go on as far as they can: first come, first served."""
        ready = deque(block for blocks in self.blocks for block in blocks)
        while ready:
            block = ready.popleft()
            steps = self.program.gpus[block.rank].threadblocks[block.tb].steps
            while block.step < len(steps):
                step = steps[block.step]
                other = self.blocks[block.rank][step.depid] if step.depid >= 0 else None
                if other is not None and other.step <= step.deps:
                    other.waiting.append(block)
                    break
                woken = self._move(block, step)
                if woken is not None:
                    ready.append(woken)
                if block.moved < step.cnt and step.type != "nop":
                    if step.type not in RECEIVING:
                        continue
                    break
                block.step, block.moved = block.step + 1, 0
                ready.extend(block.waiting)
                block.waiting.clear()
                if woken is not None:  # others have their turn
                    ready.append(block)
                    break

    def _move(self, block: _Block, step: Step) -> _Block | None:
        """Move the next chunk of the step, or all that has come; the threadblock that may go on by it."""
        if step.type == "nop":
            return None
        threadblock = self.program.gpus[block.rank].threadblocks[block.tb]
        into = self.wires[threadblock.recv, block.rank, threadblock.chan]
        out = (block.rank, threadblock.send, threadblock.chan)
        sent = False
        while block.moved < step.cnt and (step.type not in RECEIVING or into):
            value = self._value(block, step, into.popleft() if step.type in RECEIVING else None)
            if step.type in WRITING:
                self.places[block.rank][self._place(block, step.dstbuf, step.dstoff)] = value
            if step.type in SENDING:
                hop = _Hop(value.chunk, block.rank, threadblock.send)
                self.hops.append(hop)
                self.wires[out].append((value, hop))
                sent = True
            block.moved += 1
        return self.receivers.get(out) if sent else None

    def _place(self, block: _Block, buffer: str, offset: int) -> Place:
        return self._memory(Place(buffer, offset + block.moved), block.rank)

    def _value(self, block: _Block, step: Step, arrived: tuple[_Value, _Hop] | None) -> _Value:
        mine = self.places[block.rank]
        parts = [] if arrived is None else [_Value(arrived[0].chunk, arrived[1])]
        if step.type in READING:
            parts.append(mine[self._place(block, step.srcbuf, step.srcoff)])
        if step.type == "re":
            parts.append(mine[self._place(block, step.dstbuf, step.dstoff)])
        if step.type not in _REDUCES:
            return parts[0]
        for part in parts:
            if part.hop is not None:
                part.hop.reduce = True
        return _Value(parts[0].chunk)
