"""Any schedule made to keep rules: its sends in their order, each as early as the rules allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise

import networkx as nx

from ..collective.demand import Chunk
from ..errors import Refused
from ..schedule.schedule import Schedule
from .choices import Key
from .rules import Rules
from .timing import Timing, arrival_us, window_us

#: Epochs beyond which no schedule is followed: shares of next to nothing, or of nothing for hours, lead there.
MOST_EPOCHS = 100_000


def placed_under(timing: Timing, schedule: Schedule) -> dict[Key, int]:
    """The schedule's sends in epochs under the timing's rules, (chunk, path, epoch) → 1.

    Where the room on relays is limited, chunk after chunk, each as early as it finds room all the way; without any
    room, on ways over GPUs that have or want the chunk. Raises `Refused` where there is no such way.
    """
    plan = _Plan(timing)
    sends = [(send.chunk, timing.path_of[send.path]) for send in sorted(schedule.sends, key=lambda send: send.start_us)]
    room = timing.rules.relay_chunks
    if room is None:
        for send in sends:
            plan.place([send], 0)
        return dict.fromkeys(plan.placed, 1)
    ways: dict[int, list[int]] = defaultdict(list)
    for id, path in sends:
        ways[id].append(path)
    for id, paths in ways.items():
        chunk = schedule.demand.chunks[id]
        if room == 0:
            paths = _without_relays(timing, chunk, paths)
        earliest = 0
        while not plan.place([(id, path) for path in paths], earliest, room, {*chunk.origin, *chunk.want}):
            earliest += 1
    return dict.fromkeys(plan.placed, 1)


def paced(schedule: Schedule, rules: Rules) -> Schedule:
    """The schedule's sends in their order, each as early as links with a share of their bandwidth allow, on no epochs.

    For schedules without copies made by switches, where relays have any room.
    """
    topology, chunks = schedule.topology, schedule.demand.chunks
    here = {(chunk.id, rank): 0.0 for chunk in chunks for rank in chunk.origin}
    copied: set[tuple[int, int]] = set()
    free_us: dict[int, float] = defaultdict(float)
    sends = []
    for send in sorted(schedule.sends, key=lambda send: send.start_us):
        nbytes = chunks[send.chunk].bytes
        source, target = ((send.chunk, rank) for rank in schedule.ends(send))
        start = here[source]
        for hop, link in enumerate(send.path):
            start = max(start, free_us[link] - window_us(topology, send.path, hop, nbytes, 0.0, rules)[0])
        for hop, link in enumerate(send.path):
            _, free_us[link] = window_us(topology, send.path, hop, nbytes, start, rules)
        sends.append(send._replace(start_us=start))
        there = arrival_us(schedule, sends[-1], rules)
        if send.reduce:  # a sum waits for its last part, a copy is there with the first that comes
            here[target] = max(there, here.get(target, there))
        elif target in copied:
            here[target] = min(there, here[target])
        else:
            here[target] = there if chunks[send.chunk].reduce else min(there, here.get(target, there))
            copied.add(target)
    finish_us = max((here[chunk.id, rank] for chunk in chunks for rank in chunk.want), default=0.0)
    return Schedule(topology, schedule.demand, tuple(sends), finish_us)


class _Plan:
    """What has been placed: who has what from when on, which links are busy, and what relays hold."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.placed: list[Key] = []
        self.since = {(c.id, rank): 0 for c in timing.grid.demand.chunks for rank in c.origin}
        self.busy: dict[int, list[range]] = defaultdict(list)
        self.held: dict[tuple[int, int], int] = defaultdict(int)
        self.first_crossing = (timing.hops.cumsum() - timing.hops).tolist()

    def place(
        self, sends: Sequence[tuple[int, int]], earliest: int, room: int | None = None, own: Set[int] = frozenset()
    ) -> bool:
        """Place the sends, from epoch `earliest` on; not one of them if a GPU that is none of `own` would hold more
        than `room` chunks. Raises `Refused` where that takes too many epochs to be counted."""
        since, busy, placed = dict[tuple[int, int], int](), defaultdict[int, list[range]](list), list[Key]()
        until: dict[int, int] = {}
        for chunk, p in sends:
            path = self.timing.grid.paths[p]
            known = since.get((chunk, path.src_rank), self.since.get((chunk, path.src_rank)))
            assert known is not None, "a schedule sends what is there"
            epoch = self._next_free(p, max(earliest, known), busy)
            there = epoch + self.timing.arrival(p, epoch)
            if there > MOST_EPOCHS:
                raise Refused(
                    f"chunk {chunk} is on its way from GPU {path.src_rank} to GPU {path.dst_rank} for more than "
                    f"{MOST_EPOCHS} epochs of {self.timing.grid.tau_us:.3g} µs under these rules; where a link's "
                    "share is that small for that long, leave it out with --without"
                )
            for link, window in self._windows(p, epoch):
                busy[link].append(window)
            placed.append((chunk, p, epoch))
            until[path.src_rank] = max(until.get(path.src_rank, 0), epoch)
            place = (chunk, path.dst_rank)
            since[place] = min(there, since.get(place, there), self.since.get(place, there))
        holding = [
            (rank, epoch)
            for (_, rank), begin in since.items()
            if room is not None and rank not in own
            for epoch in range(begin, until.get(rank, begin) + 1)
        ]
        if room is not None and any(self.held[cell] >= room for cell in holding):
            return False
        for cell in holding:
            self.held[cell] += 1
        self.since |= since
        for link, windows in busy.items():
            self.busy[link] += windows
        self.placed += placed
        return True

    def _next_free(self, path: int, epoch: int, busy: Mapping[int, Sequence[range]]) -> int:
        """The first epoch from `epoch` on in which the path's links are free, those of `busy` left out too. A send that
        starts later ends later, so what is in its way stays so until its window begins after that."""
        while epoch <= MOST_EPOCHS:
            delays = [
                taken.stop - window.start
                for link, window in self._windows(path, epoch)
                for taken in (*self.busy[link], *busy.get(link, ()))
                if window.start < taken.stop and taken.start < window.stop
            ]
            if not delays:
                break
            epoch += max(delays)
        return epoch

    def _windows(self, path: int, epoch: int) -> list[tuple[int, range]]:
        """The path's links, and when a send from `epoch` on keeps others off them."""
        begin = self.first_crossing[path]
        windows = []
        for crossing, link in enumerate(self.timing.grid.paths[path].links, begin):
            window = self.timing.window(crossing, epoch)
            windows.append((link, range(epoch + window.start, epoch + window.stop)))
        return windows


def _without_relays(timing: Timing, chunk: Chunk, paths: Sequence[int]) -> list[int]:
    """Ways for the chunk over GPUs that have or want it: those of the schedule, if these are such."""
    own = {*chunk.origin, *chunk.want}
    if all(timing.grid.paths[p].dst_rank in own for p in paths):
        return list(paths)
    graph = nx.DiGraph()
    graph.add_nodes_from(own)
    for p, path in enumerate(timing.grid.paths):
        if {path.src_rank, path.dst_rank} <= own and path.dst_rank not in chunk.origin:
            known = graph.get_edge_data(path.src_rank, path.dst_rank)
            if known is None or timing.grid.arrival[p] < known["weight"]:
                graph.add_edge(path.src_rank, path.dst_rank, weight=timing.grid.arrival[p], path=p)
    _, ways = nx.multi_source_dijkstra(graph, set(chunk.origin))
    for rank in chunk.want:
        if rank not in ways:
            raise Refused(
                f"chunk {chunk.id} has no way from GPU {chunk.origin[0]} to GPU {rank} but over GPUs that would hold "
                "it for others, and relay_chunks is 0; allow 1"
            )
    tree = dict.fromkeys((a, b) for way in sorted(ways.values(), key=len) for a, b in pairwise(way))
    return [graph.edges[edge]["path"] for edge in tree]
