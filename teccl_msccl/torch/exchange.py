"""A rank's part of a program where all ranks share memory: what it copies and combines, and which slots it publishes.

Nothing is posted or drained there: a message is a slot of its sender's segment, filled once and read by everyone who is
to have it, so that the same data sent to several peers is copied once, and what is to be reduced is read where it lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import _core
from .plan import STAGED, Place, Plan

#: Where a piece lies: (0, 1 or 2, position) in input, output or scratch; (3 + rank, slot) in a rank's segment.
Where = tuple[int, int]


class Move(NamedTuple):
    """Copy or combine `sources` into `at`, all of part `part` of a share; as of event `kind`, to or from `peer`."""

    part: int
    at: Where
    sources: tuple[Where, ...]
    kind: str
    peer: int


def exchanges_of(plans: Sequence[Plan], rank: int) -> tuple[_core.Exchange, list[Move]]:
    """What `rank` does of the plans of all ranks (made to be `buffered`). O(events)."""
    sent = [_Sent(plan) for plan in plans]
    mine = plans[rank]
    moves = list(_moves(mine, sent))
    exchange = _core.Exchange(
        rank=rank,
        nranks=len(plans),
        parts=mine.parts,
        input_shares=mine.input_shares,
        output_shares=mine.output_shares,
        scratch=mine.scratch + mine.staging,
        slots=[each.slots for each in sent],
        moves=[move[:3] for move in moves],
    )
    return exchange, moves


class _Sent:
    """The slots that a rank publishes: one for each place as it is at one time, whoever gets it."""

    def __init__(self, plan: Plan) -> None:
        self.by_connection: dict[tuple[int, int], list[int]] = defaultdict(list)  # (receiver, channel): slots in order
        self.first: set[int] = set()  # the sends that fill their slot
        self.slot: dict[int, int] = {}  # by send
        filled: dict[tuple[str, int], int] = {}
        landing: dict[int, tuple[str, int]] = {}
        for event in plan.events:
            if event.kind == "post" and event.at is not None:
                landing[event.number] = event.at[:2]
            elif event.kind == "wait":
                filled.pop(landing[event.number], None)
            elif event.kind in ("copy", "reduce") and event.at is not None:
                filled.pop(event.at[:2], None)
            elif event.kind == "send" and event.at is not None:
                if event.at[:2] not in filled:
                    filled[event.at[:2]] = len(self.first)
                    self.first.add(event.number)
                self.slot[event.number] = filled[event.at[:2]]
                self.by_connection[event.peer, event.channel].append(self.slot[event.number])

    @property
    def slots(self) -> int:
        return len(self.first)


def _moves(plan: Plan, sent: Sequence[_Sent]) -> Iterator[Move]:
    mine = sent[plan.rank]
    taken: dict[tuple[int, int], int] = defaultdict(int)
    messages: dict[int, tuple[Where, Place, int]] = {}  # by receive: its slot, where it lands, and from whom
    staged: dict[tuple[str, int], Where] = {}  # what has landed to be reduced, read where it was published

    def where(place: Place) -> Where:
        if place[:2] in staged:
            return staged[place[:2]]
        if place.buffer in "io":
            return ("io".index(place.buffer), place.position)
        return (2, place.position + (plan.scratch if place.buffer == "t" else 0))

    for event in plan.events:
        if event.kind == "post" and event.at is not None:
            connection = (event.peer, event.channel)
            slot = sent[event.peer].by_connection[plan.rank, event.channel][taken[connection]]
            taken[connection] += 1
            messages[event.number] = ((3 + event.peer, slot), event.at, event.peer)
        elif event.kind == "wait":
            message, landing, peer = messages.pop(event.number)
            if landing.buffer == "t" and landing.position < STAGED:
                staged[landing[:2]] = message
            else:
                yield Move(landing.part, where(landing), (message,), "receive", peer)
        elif event.kind == "send" and event.at is not None and event.number in mine.first:
            yield Move(event.at.part, (3 + plan.rank, mine.slot[event.number]), (where(event.at),), "send", event.peer)
        elif event.kind == "copy" and event.at is not None and event.source is not None:
            yield Move(event.at.part, where(event.at), (where(event.source),), "copy", -1)
        elif event.kind == "reduce" and event.at is not None and event.source is not None:
            sources = (where(event.source), *map(where, event.others))
            yield Move(event.at.part, where(event.at), sources, "reduce", -1)
