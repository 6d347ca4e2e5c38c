"""Towards MSCCL++: where every transfer lands, what its sender must wait for, and an order in which all of it goes.

An MSCCL++ sender writes straight into the receiver's memory (put), so it must know the place, and that it is free.
What is received as it is lands where the program wants it; what is to be reduced lands in slots of scratch. Packets
(protocol LL) all land in places of scratch of their own, for which no launch waits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ..errors import Refused
from .program import READING, RECEIVING, SENDING, WRITING, Program, Step

#: Slots that a connection has for data to be reduced; a slot in use again needs the receiver's word that it is free.
SLOTS = 4
_REDUCING = frozenset({"rrc", "rrs", "rrcs"})


class At(NamedTuple):
    """A step of the program."""

    rank: int
    tb: int
    step: int


class Span(NamedTuple):
    """`length` chunks of one of a rank's buffers."""

    buffer: str
    offset: int
    length: int


class Connection(NamedTuple):
    """One direction between two ranks, on one of the program's channels."""

    src: int
    dst: int
    chan: int


@dataclass(frozen=True)
class Transfer:
    """A transfer of a connection, the `position`-th: it lands in `landing`. `credit` is the receiver's step that
    frees the place, and whether that is when the step is due (False) or done (True); None: the place is free from
    the start.
    """

    connection: Connection
    position: int
    sent: At
    received: At
    landing: Span
    credit: tuple[At, bool] | None


@dataclass
class Traffic:
    """All transfers, by the step at either end, and the scratch that each rank needs in all."""

    sends: dict[At, Transfer] = field(default_factory=dict)
    receives: dict[At, Transfer] = field(default_factory=dict)
    scratch: list[int] = field(default_factory=list)
    #: Where a sender has its packets before a port channel moves them, by its step.
    staging: dict[At, Span] = field(default_factory=dict)
    #: Places of a rank whose content changes after it could have been sent: (rank, place).
    rewritten: set[tuple[int, tuple[str, int]]] = field(default_factory=set)


def steps_of(program: Program) -> Iterator[tuple[At, Step]]:
    for rank, tb, position, step in program.steps():
        yield At(rank, tb, position), step


def plan_traffic(program: Program, inplace: bool) -> Traffic:
    """Match sends with receives and give every transfer its landing and its credit. Raises `Refused` where they do
    not match."""
    traffic = Traffic(scratch=[gpu.scratch_chunks for gpu in program.gpus])
    accesses = _Accesses(program, inplace)
    traffic.rewritten = accesses.rewritten
    for connection, (sent, received) in sorted(_connections(program).items()):
        _require_matched(program, connection, sent, received)
        staged = _Slots(traffic, connection, [_step(program, at) for at in received])
        latest: tuple[At, bool] | None = None
        for position, (sender, receiver) in enumerate(zip(sent, received, strict=True)):
            step = _step(program, receiver)
            if step.type in _REDUCING:
                landing, freed = staged.take(receiver, step)
                credit = None if freed is None else (freed, True)
            else:
                landing = Span(step.dstbuf, step.dstoff, step.cnt)
                credit = accesses.freed(receiver, landing)
            if credit is not None and latest is not None:  # credits are counted, so they are given in order
                credit = max(credit, latest, key=lambda given: (given[0].step, given[1]))
            latest = credit or latest
            transfer = Transfer(connection, position, sender, receiver, landing, credit)
            traffic.sends[sender] = traffic.receives[receiver] = transfer
    return traffic


def packet_traffic(program: Program, hosts: Sequence[int]) -> Traffic:
    """The same with packets. A flag does not tell two packets of one launch apart, so each has a place of its own; and
    one at the sender, where a port channel (between `hosts`) takes it from there."""
    traffic = Traffic(scratch=[-(-gpu.scratch_chunks // 2) for gpu in program.gpus])  # two plain chunks are a packet's

    def place(rank: int, length: int) -> Span:
        traffic.scratch[rank] += length
        return Span("s", traffic.scratch[rank] - length, length)

    for connection, (sent, received) in sorted(_connections(program).items()):
        _require_matched(program, connection, sent, received)
        for position, (sender, receiver) in enumerate(zip(sent, received, strict=True)):
            step = _step(program, receiver)
            if step.type == "rrs":
                raise Refused(f"{program.name}: protocol LL has no rrs in plans; lower it without fused steps")
            transfer = Transfer(connection, position, sender, receiver, place(receiver.rank, step.cnt), None)
            traffic.sends[sender] = traffic.receives[receiver] = transfer
            if hosts[connection.src] != hosts[connection.dst]:
                traffic.staging[sender] = place(sender.rank, step.cnt)
    for rank, gpu in enumerate(program.gpus):
        traffic.scratch[rank] = max(traffic.scratch[rank], gpu.scratch_chunks)
    return traffic


def _step(program: Program, at: At) -> Step:
    return program.gpus[at.rank].threadblocks[at.tb].steps[at.step]


def _connections(program: Program) -> dict[Connection, tuple[list[At], list[At]]]:
    """The sends and the receives of every connection, in order."""
    found: dict[Connection, tuple[list[At], list[At]]] = defaultdict(lambda: ([], []))
    for at, step in steps_of(program):
        block = program.gpus[at.rank].threadblocks[at.tb]
        if step.type in SENDING:
            found[Connection(at.rank, block.send, block.chan)][0].append(at)
        if step.type in RECEIVING:
            found[Connection(block.recv, at.rank, block.chan)][1].append(at)
    return found


def _require_matched(program: Program, connection: Connection, sent: Sequence[At], received: Sequence[At]) -> None:
    where = f"{program.name}: ranks {connection.src} to {connection.dst}, channel {connection.chan}"
    if len(sent) != len(received):
        raise Refused(f"{where}: {len(sent)} sends, {len(received)} receives; check the program")
    for sender, receiver in zip(sent, received, strict=True):
        if _step(program, sender).cnt != _step(program, receiver).cnt:
            raise Refused(f"{where}: {sender} and {receiver} differ in cnt; check the program")


class _Slots:
    """Scratch of a connection for what is to be reduced, used in turns."""

    def __init__(self, traffic: Traffic, connection: Connection, steps: Sequence[Step]) -> None:
        counts = [step.cnt for step in steps if step.type in _REDUCING]
        self.number = min(SLOTS, len(counts))
        self.size = max(counts, default=0)
        self.first = traffic.scratch[connection.dst]
        traffic.scratch[connection.dst] += self.number * self.size
        self.used: list[At] = []

    def take(self, receiver: At, step: Step) -> tuple[Span, At | None]:
        """The next slot, and the step that had it before."""
        turn = len(self.used)
        self.used.append(receiver)
        span = Span("s", self.first + turn % self.number * self.size, step.cnt)
        return span, self.used[turn - self.number] if turn >= self.number else None


class _Accesses:
    """Which steps use each place of each rank; one memory is one place."""

    def __init__(self, program: Program, inplace: bool) -> None:
        self.program, self.inplace = program, inplace
        self.root = root_in_place(program) if inplace else None
        self.users: dict[tuple[int, tuple[str, int]], set[At]] = defaultdict(set)
        written: Counter[tuple[int, tuple[str, int]]] = Counter()
        read: set[tuple[int, tuple[str, int]]] = set()
        for at, step in steps_of(program):
            if step.type in READING:
                places = self._places(at.rank, Span(step.srcbuf, step.srcoff, step.cnt))
                read |= set(places)
                self._use(at, places)
            if step.type in WRITING:
                places = self._places(at.rank, Span(step.dstbuf, step.dstoff, step.cnt))
                written.update(places)
                self._use(at, places)
        given = {
            place
            for rank, gpu in enumerate(program.gpus)
            for place in self._places(rank, Span("i", 0, gpu.input_chunks))
        }
        reread = given & read
        self.rewritten = {place for place, count in written.items() if count > 1 or place in reread}

    def _use(self, at: At, places: Sequence[tuple[int, tuple[str, int]]]) -> None:
        for place in places:
            self.users[place].add(at)

    def _places(self, rank: int, span: Span) -> list[tuple[int, tuple[str, int]]]:
        places = ((span.buffer, k) for k in range(span.offset, span.offset + span.length))
        return [(rank, memory(self.program, rank, place, self.root) if self.inplace else place) for place in places]

    def freed(self, receiver: At, landing: Span) -> tuple[At, bool] | None:
        """When the places are free for what `receiver` takes in: from the start, after a step of its threadblock, or,
        where other threadblocks use them, when it is due itself."""
        rewritten = [place for place in self._places(receiver.rank, landing) if place in self.rewritten]
        users = {at for place in rewritten for at in self.users[place]} - {receiver}
        if any(at.tb != receiver.tb for at in users):
            return receiver, False
        before = [at for at in users if at.step < receiver.step]
        return (max(before), True) if before else None


def memory(program: Program, rank: int, place: tuple[str, int], root: int | None = None) -> tuple[str, int]:
    """The one name of a place that has two when a call is in place (NCCL's rules), with that root."""
    buffer, offset = place
    share = program.nchunks // program.nranks
    match program.collective, buffer:
        case "allgather", "i":
            return "o", rank * share + offset
        case "reduce_scatter", "o":
            return "i", rank * share + offset
        case (("allreduce" | "alltoall" | "broadcast" | "reduce"), "i"):
            return "o", offset
        case "gather", "i" if rank == root:
            return "o", rank * program.gpus[rank].input_chunks + offset
        case "scatter", "o" if rank == root:
            return "i", rank * program.gpus[rank].output_chunks + offset
    return place


def root_in_place(program: Program) -> int | None:
    """The root of an in-place gather (who writes its output) or scatter (who reads its input): its share lies in its
    whole, and no other's does. None: of another collective. Raises `Refused` where it does not show."""
    match program.collective:
        case "gather":
            roots = {at.rank for at, step in steps_of(program) if step.type in WRITING and step.dstbuf == "o"}
        case "scatter":
            roots = {at.rank for at, step in steps_of(program) if step.type in READING and step.srcbuf == "i"}
        case _:
            return None
    if len(roots) != 1:
        raise Refused(f"target mscclpp: the root of this {program.collective} does not show; use mode outofplace")
    return roots.pop()


def global_order(program: Program, traffic: Traffic) -> dict[tuple[At, bool], int]:
    """A position in time for every step when it is due (False) and done (True), such that all that a step waits for
    comes before it: whoever executes several threadblocks' steps in this order cannot deadlock.

    Longest paths first level by level; O(E log E). Raises `Refused` when a program's waits go in circles.
    """
    follow: dict[tuple[At, bool], list[tuple[At, bool]]] = defaultdict(list)
    waits: Counter[tuple[At, bool]] = Counter()

    def before(first: tuple[At, bool], then: tuple[At, bool]) -> None:
        follow[first].append(then)
        waits[then] += 1

    for at, step in steps_of(program):
        before((at, False), (at, True))
        if at.step:
            before((at._replace(step=at.step - 1), True), (at, False))
        if step.depid >= 0:
            before((At(at.rank, step.depid, step.deps), True), (at, False))
        if transfer := traffic.sends.get(at):
            if transfer.credit is not None:
                before(transfer.credit, (at, True))
            before((at, True), (transfer.received, True))
    level: dict[tuple[At, bool], int] = defaultdict(int)
    queue = [(0, point) for at, _ in steps_of(program) if not waits[point := (at, False)]]
    heapify(queue)
    order: dict[tuple[At, bool], int] = {}
    while queue:
        depth, point = heappop(queue)
        order[point] = len(order)
        for then in follow[point]:
            level[then] = max(level[then], depth + 1)
            waits[then] -= 1
            if not waits[then]:
                heappush(queue, (level[then], then))
    stuck = min((point for point, count in waits.items() if count > 0), default=None)
    if stuck is not None:
        at = stuck[0]
        raise Refused(
            f"{program.name}: gpu {at.rank} tb {at.tb} step {at.step} waits in a circle once transfers have to find "
            "their places free; lower it without fused steps, or out of place"
        )
    return order
