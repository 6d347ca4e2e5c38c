"""The proof of a schedule: replayed in plain Python, sharing no code with whatever made or timed it."""

from __future__ import annotations

import math
from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import InputError, Refused

if TYPE_CHECKING:
    from .schedule import Schedule, Send

#: Times are sums of a few thousand doubles: equal to within this share of themselves (and never less than of 1 µs).
TOLERANCE = 1e-9


def validate(schedule: Schedule) -> None:
    """Raise `Refused` unless the schedule is feasible and meets its demand by `finish_us`.

    Checks that every send names a chunk and a path from GPU to GPU, inside its group where that is confined; that a
    sender holds what it sends when it starts; that a link carries one chunk at a time (cut-through: a link of a path
    is occupied for bytes/bandwidth once the head has reached it, and never ends before the link before it; copies of a
    chunk that start together are one transfer up to a switch that multicasts); that no contribution is reduced twice;
    that every wanted chunk, complete, is there at the end. Sends that start at one instant depart in their order.
    O(sends · path length · log sends): about 20 µs a send.
    """
    _check_sends(schedule)
    crossings = _crossings(schedule)
    _check_links(schedule, crossings)
    arrivals = [crossing.arrival + send.start_us for crossing, send in zip(crossings, schedule.sends, strict=True)]
    holdings = _Holdings(schedule, crossings)
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
        holders = schedule.demand.holders(schedule.demand.chunks[send.chunk])
        if holders is not None and not holders.issuperset(schedule.ends(send)):
            outside = next(rank for rank in schedule.ends(send) if rank not in holders)
            raise Refused(f"send {i}: chunk {send.chunk} is to stay in its group, and GPU {outside} is not in it")
        if not -_slack(0) <= send.start_us < math.inf:
            raise Refused(f"send {i} (chunk {send.chunk}) starts at {send.start_us} µs; it must be finite, 0 or later")


class _Crossing(NamedTuple):
    """What a send on a path does, counted from its start: from when to when each link is occupied, when the chunk
    has arrived; and the ranks that it goes from and to."""

    windows: tuple[tuple[int, float, float], ...]
    arrival: float
    source: int
    target: int


def _crossings(schedule: Schedule) -> list[_Crossing]:
    """What every send does; one object for all chunks of a size on a path."""
    known: dict[tuple[tuple[int, ...], float], _Crossing] = {}
    crossings = []
    for send in schedule.sends:
        key = (send.path, schedule.demand.chunks[send.chunk].bytes)
        if key not in known:
            known[key] = _crossing(schedule, *key)
        crossings.append(known[key])
    return crossings


def _crossing(schedule: Schedule, path: tuple[int, ...], nbytes: float) -> _Crossing:
    """The tail leaves a link when the slowest link so far has passed all bytes on; each link is taken for the time
    that it needs itself, up to then."""
    topology = schedule.topology
    links = [topology.link_by_id[id] for id in path]
    head, rate = 0.0, math.inf
    windows = []
    for link in links:
        rate = min(rate, link.bandwidth_GBps * 1000.0)
        tail = head + nbytes / rate
        windows.append((link.id, tail - nbytes / (link.bandwidth_GBps * 1000.0), tail))
        head += link.alpha_us
    ends = topology.rank_of[links[0].src], topology.rank_of[links[-1].dst]
    return _Crossing(tuple(windows), head + nbytes / rate, *ends)


def _check_links(schedule: Schedule, crossings: list[_Crossing]) -> None:
    """No link is occupied twice at once: its windows, sorted, do not overlap."""
    senders: dict[int, list[int]] = defaultdict(list)
    for i, crossing in enumerate(crossings):
        senders[id(crossing)].append(i)
    starts = np.array([send.start_us for send in schedule.sends])
    columns: list[tuple[np.ndarray, ...]] = []
    for those in senders.values():
        sends = np.array(those)
        for link, begin, end in crossings[those[0]].windows:
            columns.append((np.full(len(sends), link), starts[sends] + begin, starts[sends] + end, sends))
    if not columns:
        return
    links, begins, ends, numbers = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((numbers, ends, begins, links))
    links, begins, ends, numbers = links[order], begins[order], ends[order], numbers[order]
    slack = TOLERANCE * np.maximum(1.0, ends[:-1])
    both = np.flatnonzero((links[1:] == links[:-1]) & (begins[1:] < ends[:-1] - slack))
    for i in both.tolist():
        if _one_transfer(schedule, int(links[i]), schedule.sends[numbers[i]], schedule.sends[numbers[i + 1]]):
            continue
        raise Refused(
            f"link {links[i]} carries sends {numbers[i]} and {numbers[i + 1]} at once: "
            f"one ends at {ends[i]:.6g} µs, the other begins at {begins[i + 1]:.6g} µs"
        )


def _one_transfer(schedule: Schedule, link: int, one: Send, other: Send) -> bool:
    """Whether two sends are copies of one chunk that go out together and come by `link`, on the same way so far, to a
    switch that multicasts."""
    if one.chunk != other.chunk or one.reduce or other.reduce:
        return False
    if abs(one.start_us - other.start_us) > _slack(one.start_us):
        return False
    crossed = False
    for id, same in zip(one.path, other.path, strict=False):
        if id != same:
            return False
        crossed = crossed or id == link
        if schedule.topology.node_by_id[schedule.topology.link_by_id[id].dst].multicast:
            return crossed
    return False


class _Holdings:
    """Who holds which contributions of every chunk (a bit for each rank), as events pass in time order."""

    def __init__(self, schedule: Schedule, crossings: list[_Crossing]) -> None:
        self.schedule = schedule
        self.crossings = crossings
        masks: dict[tuple[int, ...], int] = {}
        self.whole = []
        self.held: dict[tuple[int, int], int] = {}
        self.in_flight: dict[int, int] = {}
        self.passed_on: set[tuple[int, int]] = set()
        for chunk in schedule.demand.chunks:
            if chunk.origin not in masks:
                masks[chunk.origin] = sum(1 << rank for rank in chunk.origin)
            self.whole.append(masks[chunk.origin])
            for rank in chunk.origin:
                self.held[chunk.id, rank] = 1 << rank if chunk.reduce else masks[chunk.origin]

    def depart(self, i: int) -> None:
        send = self.schedule.sends[i]
        source = self.crossings[i].source
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
        target = self.crossings[i].target
        content = self.in_flight.pop(i)
        place = (send.chunk, target)
        if not send.reduce:
            self.held[place] = content
            return
        before = self.held.get(place, 0)
        if before & content:
            twice = _lowest(before & content)
            raise Refused(f"send {i}: the contribution of GPU {twice} to chunk {send.chunk} is reduced twice")
        if place in self.passed_on:
            raise Refused(f"send {i}: reaches GPU {target} after it passed its share of chunk {send.chunk} on")
        self.held[place] = before | content

    def check_demand(self) -> None:
        for chunk in self.schedule.demand.chunks:
            whole = self.whole[chunk.id]
            for rank in chunk.want:
                content = self.held.get((chunk.id, rank), 0)
                if content != whole:
                    what = f"lacks GPU {_lowest(whole & ~content)}'s share of" if content else "never gets"
                    raise Refused(f"GPU {rank} {what} chunk {chunk.id}")


def _lowest(ranks: int) -> int:
    """The lowest rank whose bit is set."""
    return (ranks & -ranks).bit_length() - 1
