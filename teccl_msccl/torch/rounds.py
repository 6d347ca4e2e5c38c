"""A program in rounds of grouped messages: for groups whose messages occupy both ends until both are there, as NCCL's.

A message goes in the first round after everything that it carries is there; all messages of a round go at once, as one
group. A rank computes between two rounds. So every message waits only for earlier rounds, and no order of the ranks can
deadlock. A receive lands where it belongs unless something there is still to be used in or after its round; then, and
where it is to be reduced, in staging.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..program.program import Program
from .plan import Action, Event, Place, Play


class Round(NamedTuple):
    """What to compute first, in order, and then the group: (peer, place) of messages, in order for each peer."""

    computed: tuple[Event, ...]
    sends: tuple[tuple[int, Place], ...]
    receives: tuple[tuple[int, Place], ...]


@dataclass(frozen=True)
class Rounds:
    """A rank's rounds; the last has no messages. All ranks have as many."""

    parts: int
    scratch: int
    staging: int
    rounds: tuple[Round, ...]


def rounds_of(program: Program, in_place: bool) -> list[Rounds]:
    """Every rank's rounds. O(steps · log steps). Raises `Refused` as `plans_of` does."""
    play = Play(program, in_place)
    ranks = [_Rank() for _ in program.gpus]
    wires: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)  # the rounds of messages that are under way
    in_order = sorted((action.time, rank, action) for rank, actions in enumerate(play.actions) for action in actions)
    for _, rank, action in in_order:
        came = wires[action.receive_from[0], rank, action.receive_from[1]].popleft() if action.receive_from else 0
        goes = ranks[rank].act(action, came)
        if action.send_to:
            wires[rank, action.send_to[0], action.send_to[1]].append(goes)
    last = max(each.last for each in ranks)
    return [
        Rounds(play.parts, gpu.scratch_chunks, each.staging, tuple(each.rounds(last)))
        for gpu, each in zip(program.gpus, ranks, strict=True)
    ]


@dataclass
class _Rank:
    """What a rank does when: `written` and `read` say after which round a place was last."""

    computed: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))  # after that round
    sends: dict[int, list[tuple[int, int, Place]]] = field(default_factory=lambda: defaultdict(list))
    receives: dict[int, list[tuple[int, int, Place]]] = field(default_factory=lambda: defaultdict(list))
    written: dict[tuple[str, int], int] = field(default_factory=dict)
    used: dict[tuple[str, int], int] = field(default_factory=dict)  # when last written or read
    latest: dict[tuple[int, int], int] = field(default_factory=dict)  # by connection: the round of its last message
    staging: int = 0
    last: int = 0
    _free: list[tuple[int, int]] = field(default_factory=list)  # staging: from after which round, and which

    def act(self, action: Action, came: int) -> int:
        """Place an action whose message came in round `came`; the round in which it sends, 0 if it does not."""
        kind, at, source = action.step.type, action.at, action.source
        outgoing = at if kind in ("rcs", "rrcs") else source
        if action.receive_from is not None:
            landing = self._landing(action, came)
            self.receives[came].append((*action.receive_from, landing))
            self.last = max(self.last, came)
            if kind == "rrs":
                outgoing = landing
            if kind in ("r", "rcs") and landing != at:
                self._compute("copy", at, landing, (), came)
            elif kind in ("rrc", "rrcs", "rrs"):
                self._compute("reduce", landing if kind == "rrs" else at, source, (landing,), came)
            if landing.buffer == "t" and kind != "rrs":
                heapq.heappush(self._free, (self.used[landing[:2]], landing.position))
        elif kind == "cpy" and at != source:
            self._compute("copy", at, source, (), 0)
        elif kind == "re" and source is not None:
            self._compute("reduce", at, at, (source,), 0)
        if action.send_to is None or outgoing is None:
            return 0
        goes = max(self.written.get(outgoing[:2], 0) + 1, self.latest.get(action.send_to, 0))
        self.sends[goes].append((*action.send_to, outgoing))
        self.latest[action.send_to] = goes
        self._use(outgoing, goes)
        self.last = max(self.last, goes)
        if kind == "rrs":
            heapq.heappush(self._free, (goes, outgoing.position))
        return goes

    def _landing(self, action: Action, came: int) -> Place:
        if action.step.type in ("r", "rcs") and action.at is not None and self.used.get(action.at[:2], -1) < came:
            place = action.at
        elif self._free and self._free[0][0] < came:
            place = Place("t", heapq.heappop(self._free)[1], action.part)
        else:
            place = Place("t", self.staging, action.part)
            self.staging += 1
        self.written[place[:2]] = came
        self._use(place, came)
        return place

    def _compute(self, kind: str, at: Place | None, source: Place | None, others: tuple[Place, ...], came: int) -> None:
        assert at is not None and source is not None
        read = (source, *others)
        after = max(came, self.used.get(at[:2], 0), *(self.written.get(place[:2], 0) for place in read))
        self.computed[after].append(Event(kind, at, source=source, others=others))
        self.written[at[:2]] = after
        for place in (at, *read):
            self._use(place, after)

    def _use(self, place: Place, when: int) -> None:
        self.used[place[:2]] = max(when, self.used.get(place[:2], -1))

    def rounds(self, last: int) -> Iterator[Round]:
        for number in range(last + 1):
            yield Round(
                tuple(self.computed[number]), _ordered(self.sends[number + 1]), _ordered(self.receives[number + 1])
            )


def _ordered(messages: list[tuple[int, int, Place]]) -> tuple[tuple[int, Place], ...]:
    """By peer and channel, and then as they come: the same at both ends."""
    return tuple((peer, place) for peer, _, place in sorted(messages, key=lambda message: message[:2]))
