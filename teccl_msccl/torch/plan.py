"""A rank's plan: one order of a program's steps that point-to-point messages can follow without polling.

The whole program is played once for each slice, in rounds over all threadblocks, without data: an order of all ranks'
steps in which every receive comes after its send and every step after what it waits for. A rank that goes through its
own steps in this order, sends without blocking and waits for messages where it needs them, cannot deadlock. Receives
are posted as early as nothing else uses the place where they land; a message is sent from where it lies unless the
rank overwrites it before its receiver is sure to have taken it, in which case it is copied first. Sends, too, start as
early as what they send is there, and a message is waited for where it is used: so that while one slice of the data is
reduced, the next is on its way.

Sizes are free: chunk c of k of a share of n elements has the elements c·n/k to (c+1)·n/k, rounded down. A chunk in
scratch, or on its way, therefore keeps its number within the share (its `part`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import Refused
from ..program.program import RECEIVING, SENDING, Program, Step

#: Messages to be reduced that may be on their way to a rank at once.
STAGED = 64


class Place(NamedTuple):
    """A part of a share: `position` in `buffer` "i", "o", "s" (scratch) or "t" (staging), `part` of its share."""

    buffer: str
    position: int
    part: int


class Event(NamedTuple):
    """What a rank does: "post" a receive `number` from `peer` into `at`; "wait" for it; "drain" send `number`; "send"
    from `at` to `peer`; "copy" `source` to `at`; "reduce" `source` and `others`, in this order, into `at`."""

    kind: str
    at: Place | None = None
    peer: int = -1
    channel: int = -1
    number: int = -1
    source: Place | None = None
    others: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The events of `rank`; `parts` of a share, shares of input and output, and places of scratch and staging."""

    rank: int
    parts: int
    input_shares: int
    output_shares: int
    scratch: int
    staging: int
    events: tuple[Event, ...]


@dataclass
class Action:
    """One part of a step as it was played: `at` and `source` are None where the step has none."""

    time: int
    step: Step
    source: Place | None
    at: Place | None
    send_to: tuple[int, int] | None
    receive_from: tuple[int, int] | None
    taken: int = -1  # when the receiver takes what is sent
    part: int = 0


def plans_of(program: Program, in_place: bool, slices: int = 1, buffered: bool = False) -> list[Plan]:
    """A plan for every rank, every chunk cut into `slices` parts that go through the program one after the other;
    `buffered` for messages that are copied when they are sent, so that nothing has to be kept for them.

    O(steps · slices). Raises `Refused` for a program that hangs, that does not serve the mode, or that moves a chunk to
    another number within its share (no sizes but whole multiples would work).
    """
    play = Play(program, in_place, slices)
    return [_planned(play, rank, buffered) for rank in range(program.nranks)]


class Play:
    """The program's steps in one order, without data."""

    def __init__(self, program: Program, in_place: bool, slices: int = 1) -> None:
        if not (program.inplace if in_place else program.outofplace):
            raise Refused(f"{program.name}: does not serve calls {'in' if in_place else 'out of'} place")
        if in_place and program.collective not in ("allreduce", "broadcast", "reduce"):
            raise Refused(f"{program.name}: {program.collective} in place is executed out of place")
        self.program, self.in_place, self.slices = program, in_place, slices
        shared = program.collective in ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")
        per_share = program.chunks_per_size // program.nranks if shared else program.chunks_per_size
        self.parts = per_share * slices
        self.actions: list[list[Action]] = [[] for _ in program.gpus]
        self._cursor: dict[tuple[int, int], tuple[int, int]] = {}
        self._scratch: dict[tuple[int, int], int] = {}
        self._wires: dict[tuple[int, int, int], deque[Action]] = defaultdict(deque)
        self._time = 0
        for number in range(slices):
            self._run(number)

    def _run(self, slice_number: int) -> None:
        alive = [
            (rank, tb) for rank, gpu in enumerate(self.program.gpus) for tb, t in enumerate(gpu.threadblocks) if t.steps
        ]
        for key in alive:
            self._cursor[key] = (0, 0)
        while alive:
            moved = [key for key in alive if self._advance(*key, slice_number)]
            if not moved:
                rank, tb = alive[0]
                raise Refused(f"{self.program.name}: hangs at gpu {rank} tb {tb} step {self._cursor[rank, tb][0]}")
            alive = [key for key in alive if self._cursor[key][0] < len(self._steps(*key))]
        if any(self._wires.values()):
            raise Refused(f"{self.program.name}: sends what nobody receives")

    def _steps(self, rank: int, tb: int) -> tuple[Step, ...]:
        return self.program.gpus[rank].threadblocks[tb].steps

    def _advance(self, rank: int, tb: int, slice_number: int) -> bool:
        """Do as many chunks of the threadblock's step as have come; whether any."""
        threadblock = self.program.gpus[rank].threadblocks[tb]
        position, done = self._cursor[rank, tb]
        step = threadblock.steps[position]
        if done == 0 and step.depid >= 0 and self._cursor[rank, step.depid][0] <= step.deps:
            return False
        total = 0 if step.type == "nop" else step.cnt
        wire = self._wires[threadblock.recv, rank, threadblock.chan] if step.type in RECEIVING else None
        before = done
        while done < total and (wire is None or wire):
            self._act(rank, tb, step, (done, slice_number), wire.popleft() if wire is not None else None)
            done += 1
        finished = done >= total
        self._cursor[rank, tb] = (position + 1, 0) if finished else (position, done)
        return finished or done > before

    def _act(self, rank: int, tb: int, step: Step, piece: tuple[int, int], message: Action | None) -> None:
        chunk, slice_number = piece
        threadblock = self.program.gpus[rank].threadblocks[tb]
        reads = step.type not in ("r", "rcs")
        writes = step.type not in ("s", "rrs")
        source = self._place(rank, step.srcbuf, (step.srcoff + chunk) * self.slices + slice_number) if reads else None
        part = message.part if message is not None else source.part if source is not None else 0
        if source is not None and source.part != part:
            raise Refused(f"{self.program.name}: gpu {rank} tb {tb} combines different parts of a share")
        position = (step.dstoff + chunk) * self.slices + slice_number
        at = self._landing(rank, step.dstbuf, position, part) if writes else None
        action = Action(
            self._time,
            step,
            source,
            at,
            (threadblock.send, threadblock.chan) if step.type in SENDING else None,
            (threadblock.recv, threadblock.chan) if message is not None else None,
            part=part,
        )
        if message is not None:
            message.taken = self._time
        if action.send_to is not None:
            self._wires[rank, threadblock.send, threadblock.chan].append(action)
        self.actions[rank].append(action)
        self._time += 1

    def _place(self, rank: int, buffer: str, position: int) -> Place:
        if buffer == "s":
            return Place("s", position, self._scratch.get((rank, position), position % self.parts))
        return Place("o" if self.in_place else buffer, position, position % self.parts)

    def _landing(self, rank: int, buffer: str, position: int, part: int) -> Place:
        if buffer == "s":
            self._scratch[rank, position] = part
            return Place("s", position, part)
        place = self._place(rank, buffer, position)
        if place.part != part:
            raise Refused(f"{self.program.name}: gpu {rank} moves part {part} of a share to part {place.part}")
        return place


# -- one rank's events -------------------------------------------------------------------------------------------


@dataclass
class _Placed:
    """An action with where its message lands and where what it sends lies."""

    action: Action
    landing: Place | None
    outgoing: Place | None

    def writes(self) -> Iterator[tuple[str, int]]:
        for place in (self.action.at, self.landing):
            if place is not None:
                yield place[:2]

    def touches(self) -> Iterator[tuple[str, int]]:
        for place in (self.action.source, self.action.at, self.landing, self.outgoing):
            if place is not None:
                yield place[:2]


def _planned(play: Play, rank: int, buffered: bool) -> Plan:
    placed, staging = _with_staging(play.actions[rank])
    posts = _posts(placed)
    copied, drained, staging = ({}, {}, staging) if buffered else _protected(placed, posts, staging)
    events = _chained(_events(placed, _Moments(posts, _sends(placed, rank), copied, drained)))
    gpu = play.program.gpus[rank]
    shares = {"i": 1, "o": 1}
    nranks = play.program.nranks
    if play.program.collective in ("alltoall", "reduce_scatter", "scatter"):
        shares["i"] = nranks if gpu.input_chunks else 0
    if play.program.collective in ("alltoall", "allgather", "gather"):
        shares["o"] = nranks if gpu.output_chunks else 0
    return Plan(rank, play.parts, shares["i"], shares["o"], gpu.scratch_chunks * play.slices, staging, events)


def _with_staging(actions: list[Action]) -> tuple[list[_Placed], int]:
    """Where every message lands: in its destination, or in staging to be reduced; a fused rrs has a place of its own
    there, as it is sent from it."""
    placed, cycle, own = [], 0, 0
    for action in actions:
        kind = action.step.type
        landing = outgoing = None
        if kind in ("r", "rcs"):
            landing = action.at
        elif kind == "rrs":
            landing = outgoing = Place("t", STAGED + own, action.part)
            own += 1
        elif kind in ("rrc", "rrcs"):
            landing = Place("t", cycle % STAGED, action.part)
            cycle += 1
        if kind == "s":
            outgoing = action.source
        elif kind in ("rcs", "rrcs"):
            outgoing = action.at
        placed.append(_Placed(action, landing, outgoing))
    return placed, STAGED + own if own else min(cycle, STAGED)


class _Starts:
    """Before which action each message starts: never before an earlier one of its connection."""

    def __init__(self) -> None:
        self.at: dict[int, list[int]] = defaultdict(list)
        self._last: dict[tuple[int, int] | None, int] = {}

    def add(self, index: int, connection: tuple[int, int] | None, earliest: int) -> None:
        start = max(earliest, self._last.get(connection, 0))
        self.at[start].append(index)
        self._last[connection] = start


def _posts(placed: list[_Placed]) -> dict[int, list[int]]:
    """Every receive is posted right after the last action that uses the place where it lands, and once what is sent
    from there is sure to have been taken; at its own action at the latest."""
    times = [each.action.time for each in placed]
    last_use: dict[tuple[str, int], int] = {}
    last_taken: dict[tuple[str, int], int] = {}
    posts = _Starts()
    for index, each in enumerate(placed):
        if each.landing is not None:
            place = each.landing[:2]
            sure = bisect_right(times, last_taken.get(place, -1))
            posts.add(index, each.action.receive_from, min(index, max(last_use.get(place, -1) + 1, sure)))
        last_use.update(dict.fromkeys(each.touches(), index))
        if each.outgoing is not None:
            place = each.outgoing[:2]
            last_taken[place] = max(last_taken.get(place, -1), each.action.taken)
    return posts.at


def _sends(placed: list[_Placed], rank: int) -> dict[int, list[int]]:
    """Every send starts right after the last action that writes what it sends, which may be its own."""
    last_write: dict[tuple[str, int], int] = {}
    sends = _Starts()
    for index, each in enumerate(placed):
        last_write.update(dict.fromkeys(each.writes(), index))
        if each.outgoing is not None:
            sends.add(index, each.action.send_to, last_write.get(each.outgoing[:2], -1) + 1)
    for index, started in sends.at.items():  # no two ranks begin with the same receiver
        sends.at[index] = sorted(started, key=lambda send: (_peer_after(placed[send], rank), send))
    return sends.at


def _peer_after(each: _Placed, rank: int) -> tuple[bool, int]:
    """Receivers in the order rank + 1, rank + 2, … and then from 0."""
    peer = each.action.send_to[0] if each.action.send_to is not None else rank
    return (peer < rank, peer)


def _protected(
    placed: list[_Placed], posts: dict[int, list[int]], staging: int
) -> tuple[dict[int, Place], dict[int, list[int]], int]:
    """Sends whose place is overwritten later: those to copy first, and those to drain before which action.

    Draining waits for the receiver, which is safe where it takes the message earlier in the common order."""
    posted_before = {index: before for before, indices in posts.items() for index in indices}
    writes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, each in enumerate(placed):
        if each.landing is not None:
            writes[each.landing[:2]].append(posted_before[index])
        if each.action.at is not None and each.action.step.type not in ("r", "rcs"):
            writes[each.action.at[:2]].append(index)
    copied: dict[int, Place] = {}
    drained: dict[int, list[int]] = defaultdict(list)
    for index, each in enumerate(placed):
        if each.outgoing is None:
            continue
        later = [write for write in writes[each.outgoing[:2]] if write > index]
        if not later:
            continue
        first = min(later)
        if first < len(placed) and each.action.taken < placed[first].action.time:
            drained[first].append(index)
        else:
            copied[index] = Place("t", staging, each.outgoing.part)
            staging += 1
    return copied, drained, staging


@dataclass(frozen=True)
class _Moments:
    """By action: the receives to post and the sends to start before it, the sends to drain; and the sends to copy."""

    posts: dict[int, list[int]]
    sends: dict[int, list[int]]
    copied: dict[int, Place]
    drained: dict[int, list[int]]


def _events(placed: list[_Placed], moments: _Moments) -> Iterator[Event]:
    waiting: dict[tuple[str, int], int] = {}  # by place: the message that is to land there

    def landed(*places: Place | None) -> Iterator[Event]:
        for place in places:
            if place is not None and (number := waiting.pop(place[:2], None)) is not None:
                yield Event("wait", number=number)

    for index in range(len(placed) + 1):
        for send in moments.sends.get(index, ()):
            outgoing, to = placed[send].outgoing, placed[send].action.send_to
            assert outgoing is not None and to is not None
            yield from landed(outgoing)
            if send in moments.copied:
                yield Event("copy", moments.copied[send], source=outgoing)
                outgoing = moments.copied[send]
            yield Event("send", outgoing, *to, send)
        for send in moments.drained.get(index, ()):
            yield Event("drain", number=send)
        for receive in moments.posts.get(index, ()):
            landing, connection = placed[receive].landing, placed[receive].action.receive_from
            assert landing is not None and connection is not None
            yield from landed(landing)
            yield Event("post", landing, *connection, receive)
            waiting[landing[:2]] = receive
        if index < len(placed):
            yield from _computed(placed[index], landed)
    yield from (Event("wait", number=number) for number in waiting.values())


def _computed(each: _Placed, landed: Callable[..., Iterator[Event]]) -> Iterator[Event]:
    """What an action does to the rank's own memory, once what it needs has landed."""
    action, kind, landing = each.action, each.action.step.type, each.landing
    if kind == "cpy" and action.at != action.source:
        yield from landed(action.source, action.at)
        yield Event("copy", action.at, source=action.source)
    elif kind == "re" and action.source is not None:
        yield from landed(action.source, action.at)
        yield Event("reduce", action.at, source=action.at, others=(action.source,))
    elif kind in ("rrc", "rrcs", "rrs") and landing is not None:
        at = landing if kind == "rrs" else action.at
        yield from landed(landing, action.source, at)
        yield Event("reduce", at, source=action.source, others=(landing,))


def _chained(events: Iterator[Event]) -> tuple[Event, ...]:
    """Reductions that follow one another into the same place become one, which goes over the memory once."""
    chained: list[Event] = []
    last = -1  # where the reduction stands that the next may join; since then, only waits
    for event in events:
        if event.kind == "reduce" and last >= 0 and event.source == event.at == chained[last].at:
            before = chained.pop(last)
            event = before._replace(others=before.others + event.others)
        chained.append(event)
        if event.kind == "reduce":
            last = len(chained) - 1
        elif event.kind != "wait":
            last = -1
    return tuple(chained)
