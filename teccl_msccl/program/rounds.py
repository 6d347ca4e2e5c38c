"""Rounds: a program as grouped point-to-point calls, for runtimes that have ncclSend and ncclRecv and no schedules.

In a round a rank first copies and reduces in its own memory, then sends and receives in one group. The two ends of a
message are in the same round of their ranks, and the messages of a round between two ranks are in the same order on
both, so a rank that does its rounds one after the other meets its peers in each: NCCL's groups cannot deadlock.

The program is played once without data, in rounds over all threadblocks, as the order in which everything may happen.
In this order, every copy, reduction and message gets the earliest round that what it reads and overwrites allows. A
message that is still on its way when what it was sent from is overwritten is sent from a copy.

The same rounds serve calls in place and out of place, since ranks of one call may differ in that: places that are one
in place count as one. Sizes are free: part p of a share of n elements has the elements p·n/parts to (p+1)·n/parts,
rounded down.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from ..errors import Refused
from .program import RECEIVING, SENDING, Program, Step

#: Collectives whose input (output) is all ranks' shares.
SHARED_INPUT = frozenset({"reduce_scatter", "scatter", "alltoall"})
SHARED_OUTPUT = frozenset({"allgather", "gather", "alltoall"})


class Place(NamedTuple):
    """`position`, in parts, of buffer "i", "o" or "s" (scratch, temporary places after the program's own)."""

    buffer: str
    position: int


class Act(NamedTuple):
    """ "copy" `source` to `at`; "reduce" `source` and `other` into `at`; "send" from `source` or "receive" into `at`,
    with `peer`. `length` parts of a share, the first being its part number `part`."""

    kind: str
    part: int
    length: int = 1
    at: Place | None = None
    source: Place | None = None
    other: Place | None = None
    peer: int = -1


@dataclass(frozen=True)
class RankRounds:
    """One rank's rounds, each its local acts and its messages; `scratch` in parts. `writes_input`: the program
    overwrites its input, which calls out of place must not see."""

    rounds: tuple[tuple[tuple[Act, ...], tuple[Act, ...]], ...]
    scratch: int
    writes_input: bool


@dataclass(frozen=True)
class Rounds:
    """A program's rounds, for shares of `parts` parts."""

    parts: int
    ranks: tuple[RankRounds, ...]


def rounds_of(program: Program) -> Rounds:
    """The rounds of a program. O(steps · chunks per step · log).

    Raises `Refused` for a program that hangs, that serves no calls out of place, or that moves a chunk to another
    number within its share (only sizes that are whole multiples would work).
    """
    if not program.outofplace:
        raise Refused(f"{program.name}: serves calls in place only")
    play = _Play(program)
    play.run()
    return Rounds(play.parts, tuple(_finished(each) for each in play.ranks))


@dataclass
class _Message:
    """On its way from `source` of rank `sender`, since nobody has taken it yet."""

    sender: int
    source: Place
    part: int


@dataclass
class _Rank:
    """A rank's acts by round, and when its places were last touched: 2·round locally, 2·round + 1 by a message."""

    scratch: int
    local: dict[int, list[Act]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[int, list[Act]] = field(default_factory=lambda: defaultdict(list))
    written: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    touched: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    untaken: dict[Place, list[_Message]] = field(default_factory=lambda: defaultdict(list))
    parts: dict[Place, int] = field(default_factory=dict)
    temporaries: int = 0
    writes_input: bool = False


def _round_after(moment: int) -> int:
    """The first round in which what depends on something at `moment` may be: local acts keep their order, and come
    before the messages of their round."""
    return (moment + 1) // 2


class _Play:
    """The program's steps in one order, each put into the earliest round."""

    def __init__(self, program: Program) -> None:
        self.program = program
        shared = program.collective in SHARED_INPUT | SHARED_OUTPUT
        self.parts = program.chunks_per_size // (program.nranks if shared else 1)
        if self.parts < 1 or (shared and program.chunks_per_size % program.nranks):
            raise Refused(f"{program.name}: {program.chunks_per_size} chunks are no whole shares")
        self.ranks = [_Rank(gpu.scratch_chunks) for gpu in program.gpus]
        self._wires: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)
        self._last: dict[tuple[int, int, int], tuple[int, int]] = {}  # by round and ends: where the last message stands

    def run(self) -> None:
        """Every threadblock in turn, as far as it comes, until all are done."""
        blocks = {(r, t): tb for r, gpu in enumerate(self.program.gpus) for t, tb in enumerate(gpu.threadblocks)}
        alive = [key for key, tb in blocks.items() if tb.steps]
        done = dict.fromkeys(blocks, (0, 0))  # the step, and how many of its chunks
        while alive:
            moved = False
            for rank, number in alive:
                threadblock = blocks[rank, number]
                position, chunk = done[rank, number]
                step = threadblock.steps[position]
                if chunk == 0 and step.depid >= 0 and done[rank, step.depid][0] <= step.deps:
                    continue
                total = 0 if step.type == "nop" else step.cnt
                receiving = step.type in RECEIVING
                wire = self._wires[threadblock.recv, rank, threadblock.chan]
                to = (rank, threadblock.send, threadblock.chan)
                before = chunk
                while chunk < total and (wire or not receiving):
                    self._act(rank, step, chunk, wire.popleft() if receiving else None, to)
                    chunk += 1
                done[rank, number] = (position + 1, 0) if chunk >= total else (position, chunk)
                moved = moved or chunk >= total or chunk > before
            if not moved:
                rank, number = alive[0]
                raise Refused(f"{self.program.name}: hangs at gpu {rank} tb {number} step {done[rank, number][0]}")
            alive = [key for key in alive if done[key][0] < len(blocks[key].steps)]
        if any(self._wires.values()):
            raise Refused(f"{self.program.name}: sends what nobody receives")

    def _act(self, rank: int, step: Step, chunk: int, message: _Message | None, to: tuple[int, int, int]) -> None:
        """One chunk of a step: what it receives, what it does with it, and what it sends."""
        source = Place(step.srcbuf, step.srcoff + chunk) if step.type not in ("r", "rcs") else None
        at = Place(step.dstbuf, step.dstoff + chunk) if step.type not in ("s", "rrs") else None
        part = message.part if message is not None else self._part(rank, source) if source is not None else 0
        for place in (source, at):
            if place is not None and not 0 <= place.position < self._size(rank, place.buffer):
                raise Refused(f"{self.program.name}: gpu {rank} {step.type} is outside its buffer")
            if place is not None and (place is source or place.buffer != "s") and self._part(rank, place) != part:
                raise Refused(f"{self.program.name}: gpu {rank} moves part {part} of a share to another")
        outgoing = source
        if step.type in ("r", "rcs"):
            assert message is not None and at is not None
            self._move(message, rank, at)
            outgoing = at
        elif step.type in ("rrc", "rrcs", "rrs"):
            assert message is not None
            landing = self._temporary(rank)
            self._move(message, rank, landing)
            outgoing = at if at is not None else landing
            self._local(rank, Act("reduce", part, at=outgoing, source=source, other=landing))
        elif step.type == "cpy" and at != source:
            self._local(rank, Act("copy", part, at=at, source=source))
        elif step.type == "re":
            self._local(rank, Act("reduce", part, at=at, source=at, other=source))
        if step.type in SENDING:
            assert outgoing is not None
            sent = _Message(rank, outgoing, part)
            self._wires[to].append(sent)
            self.ranks[rank].untaken[self._one(rank, outgoing)].append(sent)

    def _part(self, rank: int, place: Place) -> int:
        """Which part of its share lies there."""
        if place.buffer != "s":
            return place.position % self.parts
        return self.ranks[rank].parts.get(place, place.position % self.parts)

    def _size(self, rank: int, buffer: str) -> int:
        """Of a buffer, in parts."""
        if buffer == "s":
            return self.ranks[rank].scratch
        shared = self.program.collective in (SHARED_INPUT if buffer == "i" else SHARED_OUTPUT)
        return self.parts * (self.program.nranks if shared else 1)

    def _one(self, rank: int, place: Place) -> Place:
        """The place as it is called in place, where input and output lie in one another."""
        if place.buffer == "s" or self.program.collective == "alltoall":
            return place
        if self.program.collective in SHARED_INPUT:
            offset = rank * self.parts if place.buffer == "o" else 0
            return Place("i", offset + place.position)
        offset = rank * self.parts if self.program.collective in SHARED_OUTPUT and place.buffer == "i" else 0
        return Place("o", offset + place.position)

    def _temporary(self, rank: int) -> Place:
        self.ranks[rank].temporaries += 1
        return Place("s", self.ranks[rank].scratch + self.ranks[rank].temporaries - 1)

    def _local(self, rank: int, act: Act) -> None:
        mine = self.ranks[rank]
        assert act.at is not None
        self._overwrite(rank, act.at, act.part, act.source if act.kind == "copy" else None)
        read = [self._one(rank, place) for place in (act.source, act.other) if place is not None]
        target = self._one(rank, act.at)
        number = _round_after(max(mine.touched[target], *(mine.written[place] for place in read)))
        mine.local[number].append(act)
        for place in read:
            mine.touched[place] = max(mine.touched[place], 2 * number)
        mine.written[target] = mine.touched[target] = 2 * number

    def _move(self, message: _Message, rank: int, at: Place) -> None:
        """The message is taken now, into `at`."""
        self._overwrite(rank, at, message.part)
        sender, mine = self.ranks[message.sender], self.ranks[rank]
        source, target = self._one(message.sender, message.source), self._one(rank, at)
        sender.untaken[source] = [other for other in sender.untaken[source] if other is not message]
        number = _round_after(max(sender.written[source], mine.touched[target]))
        moment = 2 * number + 1
        send = Act("send", message.part, source=message.source, peer=rank)
        receive = Act("receive", message.part, at=at, peer=message.sender)
        ends, sent, received = (number, message.sender, rank), sender.messages[number], mine.messages[number]
        last = self._last.get(ends)
        if last is not None and _follows(sent[last[0]], send) and _follows(received[last[1]], receive):
            for acts, index in zip((sent, received), last, strict=True):
                acts[index] = acts[index]._replace(length=acts[index].length + 1)
        else:
            self._last[ends] = (len(sent), len(received))
            sent.append(send)
            received.append(receive)
        sender.touched[source] = max(sender.touched[source], moment)
        mine.written[target] = mine.touched[target] = moment

    def _overwrite(self, rank: int, at: Place, part: int, copied: Place | None = None) -> None:
        """`at` is about to be overwritten: messages sent from there that nobody has taken are sent from a copy. What is
        `copied` there from the place that is the same in place stays as it is."""
        mine = self.ranks[rank]
        if at.buffer == "i":
            mine.writes_input = True
        one = self._one(rank, at)
        waiting = mine.untaken.pop(one, [])
        if copied is not None and self._one(rank, copied) == one:
            mine.untaken[one] = [message for message in waiting if message.source == copied]
            waiting = [message for message in waiting if message.source != copied]
        kept: dict[Place, Place] = {}
        for message in waiting:
            if message.source not in kept:
                kept[message.source] = self._temporary(rank)
                self._local(rank, Act("copy", message.part, at=kept[message.source], source=message.source))
            message.source = kept[message.source]
            mine.untaken[message.source].append(message)
        if at.buffer == "s":
            mine.parts[at] = part


# -- after the play ------------------------------------------------------------------------------------------------


def _finished(rank: _Rank) -> RankRounds:
    places = _shared_temporaries(rank)

    def placed(act: Act) -> Act:
        moved = {name: places.get(place, place) for name in ("at", "source", "other") if (place := getattr(act, name))}
        return act._replace(**moved)

    last = max([*rank.local, *rank.messages], default=-1)
    rounds = tuple(
        (
            tuple(_joined([placed(act) for act in rank.local.get(number, ())])),
            tuple(placed(act) for act in rank.messages.get(number, ())),
        )
        for number in range(last + 1)
    )
    used = max((place.position for place in places.values()), default=rank.scratch - 1)
    return RankRounds(rounds, used + 1, rank.writes_input)


def _shared_temporaries(rank: _Rank) -> dict[Place, Place]:
    """Temporary places that are in use at different times become one: linear scan over their lifetimes."""
    life: dict[Place, tuple[int, int]] = {}
    for phase, acts in ((0, rank.local), (1, rank.messages)):
        for number, some in acts.items():
            for act in some:
                for place in (act.at, act.source, act.other):
                    if place is not None and place.buffer == "s" and place.position >= rank.scratch:
                        moment = 2 * number + phase
                        first, last = life.get(place, (moment, moment))
                        life[place] = (min(first, moment), max(last, moment))
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    shared: dict[Place, Place] = {}
    size = rank.scratch
    for place, (first, last) in sorted(life.items(), key=lambda item: (item[1], item[0])):
        while busy and busy[0][0] < first:
            heappush(free, heappop(busy)[1])
        if free:
            position = heappop(free)
        else:
            position, size = size, size + 1
        shared[place] = Place("s", position)
        heappush(busy, (last, position))
    return shared


def _joined(acts: list[Act]) -> Iterator[Act]:
    """Copies that follow one another from neighbours to neighbours in the user's buffers become one."""
    before: Act | None = None
    for act in acts:
        if before is not None and before.kind == act.kind == "copy" and _follows(before, act):
            before = before._replace(length=before.length + act.length)
            continue
        if before is not None:
            yield before
        before = act
    if before is not None:
        yield before


def _follows(before: Act, act: Act) -> bool:
    """Whether both places of `act` come right after those of `before`, in user buffers."""
    return all(
        after is None
        or (first is not None and first.buffer != "s" and after == Place(first.buffer, first.position + before.length))
        for first, after in ((before.at, act.at), (before.source, act.source))
    )
