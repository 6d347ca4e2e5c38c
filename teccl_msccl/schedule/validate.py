"""The proof of a schedule: replayed in plain Python, sharing no code with whatever made or timed it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import Refused

if TYPE_CHECKING:
    from .schedule import Schedule, Send

#: Times are sums of a few thousand doubles: equal to within this, relative to the finish time.
TOLERANCE = 1e-9


def validate(schedule: Schedule) -> None:
    """Raise `Refused` unless the schedule is feasible and meets its demand by `finish_us`.

    Checks that a sender holds what it sends when it starts; that a link carries one chunk at a time (cut-through: a
    link of a path is occupied for bytes/bandwidth once the head has reached it, and never ends before the
    link before it); that no contribution is reduced twice; that every wanted chunk, complete, is there at the end.
    O(sends · path length · log sends).
    """
    slack = TOLERANCE * max(1.0, schedule.finish_us)
    _check_links(schedule, slack)
    holdings = _Holdings(schedule, slack)
    events = [(send.start_us, 1, i) for i, send in enumerate(schedule.sends)]
    events += [(_windows(schedule, send)[1] - slack, 0, i) for i, send in enumerate(schedule.sends)]
    for _, is_start, i in sorted(events):
        send = schedule.sends[i]
        if is_start:
            holdings.depart(i, send)
        else:
            holdings.arrive(i, send)
    holdings.check_demand()


def _windows(schedule: Schedule, send: Send) -> tuple[list[tuple[int, float, float]], float]:
    """When each link of the send's path is occupied, and when the chunk has arrived."""
    nbytes = schedule.demand.chunks[send.chunk].bytes
    head = tail = send.start_us
    windows = []
    for id in send.path:
        link = schedule.topology.link_by_id[id]
        duration = nbytes / (link.bandwidth_GBps * 1000.0)
        begin = max(head, tail - duration)
        end = begin + duration
        windows.append((id, begin, end))
        head, tail = begin + link.alpha_us, end + link.alpha_us
    return windows, tail


def _check_links(schedule: Schedule, slack: float) -> None:
    occupied: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    for i, send in enumerate(schedule.sends):
        if send.start_us < -slack:
            raise Refused(f"send {i} (chunk {send.chunk}) starts at {send.start_us} µs, before time 0")
        for link, begin, end in _windows(schedule, send)[0]:
            occupied[link].append((begin, end, i))
    for link, windows in occupied.items():
        windows.sort()
        for (_, end, first), (begin, _, second) in pairwise(windows):
            if begin < end - slack:
                raise Refused(
                    f"link {link} carries sends {first} and {second} at once: "
                    f"one ends at {end:.6g} µs, the other begins at {begin:.6g} µs"
                )


class _Holdings:
    """Who holds which contributions of every chunk, as events pass in time order."""

    def __init__(self, schedule: Schedule, slack: float) -> None:
        self.schedule = schedule
        self.slack = slack
        self.whole = [frozenset(chunk.origin) for chunk in schedule.demand.chunks]
        self.held: dict[tuple[int, int], frozenset[int]] = {}
        self.in_flight: dict[int, frozenset[int]] = {}
        self.passed_on: set[tuple[int, int]] = set()
        for chunk in schedule.demand.chunks:
            for rank in chunk.origin:
                self.held[chunk.id, rank] = frozenset({rank}) if chunk.reduce else self.whole[chunk.id]

    def depart(self, i: int, send: Send) -> None:
        source, _ = self.schedule.ends(send)
        content = self.held.get((send.chunk, source))
        if content is None:
            raise Refused(
                f"send {i}: GPU {source} does not hold chunk {send.chunk} at {send.start_us:.6g} µs, when it sends it"
            )
        if not send.reduce and content != self.whole[send.chunk]:
            raise Refused(f"send {i}: GPU {source} copies chunk {send.chunk} on before its reduction is complete")
        if send.reduce:
            self.passed_on.add((send.chunk, source))
        self.in_flight[i] = content

    def arrive(self, i: int, send: Send) -> None:
        _, target = self.schedule.ends(send)
        content = self.in_flight.pop(i)
        place = (send.chunk, target)
        if not send.reduce:
            self.held[place] = content
            return
        before = self.held.get(place, frozenset())
        twice = before & content
        if twice:
            raise Refused(f"send {i}: the contribution of GPU {min(twice)} to chunk {send.chunk} is reduced twice")
        if place in self.passed_on:
            raise Refused(f"send {i}: reaches GPU {target} after it passed its share of chunk {send.chunk} on")
        self.held[place] = before | content

    def check_demand(self) -> None:
        last = max((_windows(self.schedule, send)[1] for send in self.schedule.sends), default=0.0)
        if last > self.schedule.finish_us + self.slack:
            raise Refused(f"the last chunk arrives at {last:.6g} µs, after the finish at {self.schedule.finish_us:.6g}")
        for chunk in self.schedule.demand.chunks:
            for rank in chunk.want:
                content = self.held.get((chunk.id, rank), frozenset())
                lacking = self.whole[chunk.id] - content
                if lacking:
                    what = f"lacks GPU {min(lacking)}'s share of" if content else "never gets"
                    raise Refused(f"GPU {rank} {what} chunk {chunk.id}")
