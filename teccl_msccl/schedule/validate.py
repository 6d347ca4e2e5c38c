"""The proof of a schedule: replayed in plain Python, sharing no code with whatever made or timed it."""

from __future__ import annotations

import math
from collections import defaultdict
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import InputError, Refused

if TYPE_CHECKING:
    from .schedule import Schedule, Send

#: Times are sums of a few thousand doubles: equal to within this share of themselves (and never less than of 1 µs).
TOLERANCE = 1e-9


def validate(schedule: Schedule) -> None:
    """Raise `Refused` unless the schedule is feasible and meets its demand by `finish_us`.

    Checks that every send names a chunk and a path from GPU to GPU; that a sender holds what it sends when it
    starts; that a link carries one chunk at a time (cut-through: a link of a path is occupied for bytes/bandwidth
    once the head has reached it, and never ends before the link before it); that no contribution is reduced twice;
    that every wanted chunk, complete, is there at the end. Sends that start at one instant depart in their order.
    O(sends · path length · log sends).
    """
    _check_sends(schedule)
    windows = [_windows(schedule, send) for send in schedule.sends]
    _check_links(schedule, [occupied for occupied, _ in windows])
    arrivals = [arrival for _, arrival in windows]
    holdings = _Holdings(schedule)
    arriving: list[tuple[float, int]] = []
    for i in sorted(range(len(arrivals)), key=lambda i: schedule.sends[i].start_us):
        start = schedule.sends[i].start_us
        while arriving and arriving[0][0] <= start + _slack(start):
            holdings.arrive(heappop(arriving)[1])
        holdings.depart(i)
        heappush(arriving, (arrivals[i], i))
    while arriving:
        holdings.arrive(heappop(arriving)[1])
    holdings.check_demand()
    last = max(arrivals, default=0.0)
    if not last <= schedule.finish_us + _slack(last):
        raise Refused(f"the last chunk arrives at {last:.6g} µs, after the finish at {schedule.finish_us:.6g}")


def _slack(time_us: float) -> float:
    return TOLERANCE * max(1.0, time_us)


def _check_sends(schedule: Schedule) -> None:
    """Every send is one at all: a chunk of the demand, a path of the topology, a time."""
    from .schedule import check_path

    if not math.isfinite(schedule.finish_us):
        raise Refused(f"the finish is at {schedule.finish_us} µs; it must be finite")
    for path in {send.path for send in schedule.sends}:
        try:
            check_path(path, schedule.topology, f"path {list(path)}")
        except InputError as error:
            raise Refused(str(error)) from None
    for i, send in enumerate(schedule.sends):
        if not 0 <= send.chunk < len(schedule.demand.chunks):
            raise Refused(f"send {i}: there is no chunk {send.chunk}")
        if send.reduce and not schedule.demand.chunks[send.chunk].reduce:
            raise Refused(f"send {i}: reduces chunk {send.chunk}, which is to be copied")
        if not -_slack(0) <= send.start_us < math.inf:
            raise Refused(f"send {i} (chunk {send.chunk}) starts at {send.start_us} µs; it must be finite, 0 or later")


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


def _check_links(schedule: Schedule, occupied: list[list[tuple[int, float, float]]]) -> None:
    on_link: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    for i, windows in enumerate(occupied):
        for link, begin, end in windows:
            on_link[link].append((begin, end, i))
    for link, uses in on_link.items():
        uses.sort()
        for (_, end, first), (begin, _, second) in pairwise(uses):
            if begin < end - _slack(end):
                raise Refused(
                    f"link {link} carries sends {first} and {second} at once: "
                    f"one ends at {end:.6g} µs, the other begins at {begin:.6g} µs"
                )


class _Holdings:
    """Who holds which contributions of every chunk, as events pass in time order."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.whole = [frozenset(chunk.origin) for chunk in schedule.demand.chunks]
        self.held: dict[tuple[int, int], frozenset[int]] = {}
        self.in_flight: dict[int, frozenset[int]] = {}
        self.passed_on: set[tuple[int, int]] = set()
        for chunk in schedule.demand.chunks:
            for rank in chunk.origin:
                self.held[chunk.id, rank] = frozenset({rank}) if chunk.reduce else self.whole[chunk.id]

    def depart(self, i: int) -> None:
        send = self.schedule.sends[i]
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

    def arrive(self, i: int) -> None:
        send = self.schedule.sends[i]
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
        for chunk in self.schedule.demand.chunks:
            for rank in chunk.want:
                content = self.held.get((chunk.id, rank), frozenset())
                lacking = self.whole[chunk.id] - content
                if lacking:
                    what = f"lacks GPU {min(lacking)}'s share of" if content else "never gets"
                    raise Refused(f"GPU {rank} {what} chunk {chunk.id}")
