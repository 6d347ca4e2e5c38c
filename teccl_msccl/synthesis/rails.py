"""Rails, evenly filled: between hosts a chunk goes where links have least to carry, not only between its own GPUs.

What one GPU sends and another wants loads its own NIC more than others, where the collective is uneven (an alltoallv)
or the hosts are (a NIC, a GPU or a link is lost); local links have the bandwidth to spread it: from the source to a GPU
that can cross over, between hosts, and to the GPUs there that want it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

import numpy as np

from ..collective.demand import Chunk, Demand
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths
from ..topology.translations import host_translations
from .incumbent import INDIFFERENCE, Incumbent
from .quotient import Timeline, played
from .settings import Settings

#: What another hop counts against load, as a share of the chunk's time on the slowest link.
HOP = 0.05
#: Chunks for the largest share that are tried.
COUNTS = (1, 2, 4, 8)
#: Sends beyond which a schedule takes seconds to play.
MOST_SENDS = 50_000
#: Before what is copied in a host comes what other GPUs bring to others.
EARLIER_US = 1e-6
#: GPUs of which all pairs are looked at, where hosts are unlike.
MOST_GPUS = 128


class Crossing(NamedTuple):
    """A chunk's way from host to host, the ranks there that want it, and for how many µs its busiest link is taken
    before it."""

    chunk: Chunk
    path: Path
    targets: Sequence[int]
    begins_us: float


class Rails:
    """The ways within hosts, and the shortest between each two hosts, of a cluster."""

    def __init__(self, topology: Topology, hosts: Sequence[Sequence[int]], alike: bool) -> None:
        """`hosts` are their ranks; those of hosts that are `alike` cross over to the GPU at the same place."""
        self.topology, self.hosts = topology, hosts
        self.host_of = {rank: h for h, ranks in enumerate(hosts) for rank in ranks}
        near = {(a, b) for ranks in hosts for a, b in product(ranks, ranks) if a != b}
        across = (
            {pair for place in zip(*hosts, strict=True) for pair in product(place, place) if pair[0] != pair[1]}
            if alike
            else {
                pair for pair in product(self.host_of, self.host_of) if self.host_of[pair[0]] != self.host_of[pair[1]]
            }
        )
        self.near: dict[tuple[int, int], list[Path]] = defaultdict(list)
        self.across: dict[tuple[int, int], list[Path]] = defaultdict(list)
        for path in direct_paths(topology, frozenset(near | across)):
            a, b = self.host_of[path.src_rank], self.host_of[path.dst_rank]
            if a == b:
                self.near[path.src_rank, path.dst_rank].append(path)
            else:
                self.across[a, b].append(path)
        for ends, paths in self.across.items():
            fewest = min(len(path.links) for path in paths)
            self.across[ends] = [path for path in paths if len(path.links) == fewest]
        self.complete = len(self.near) == len(near) and len(self.across) == len(hosts) * (len(hosts) - 1)
        self._us = {link.id: 1e-3 / link.bandwidth_GBps for link in topology.links}

    def schedules(self, demand: Demand) -> Iterator[Schedule]:
        """Schedules of chunks that one GPU has: for one other each, or for all. In the order in which links are loaded;
        and chunks for one each as `_starts` has them, too."""
        between: dict[tuple[int, int], list[Chunk]] = defaultdict(list)
        for chunk in demand.chunks:
            a = self.host_of[chunk.origin[0]]
            for b in {self.host_of[rank] for rank in chunk.want}:
                between[a, b].append(chunk)
        crossings = list(self._crossings(demand, between))
        inside = [chunk for a in range(len(self.hosts)) for chunk in between[a, a]]
        yield self._played(demand, self._hops(crossings, inside, [crossing.begins_us for crossing in crossings]))
        if all(len(chunk.want) == 1 for chunk in demand.chunks):
            yield self._played(demand, self._hops(crossings, inside, self._starts(crossings)))

    def _played(self, demand: Demand, hops: Iterator[tuple[int, Path | tuple[int, int], float]]) -> Schedule:
        number: dict[tuple[int, ...], int] = {}
        turn: dict[tuple[int, int], int] = defaultdict(int)
        rows = []
        for chunk, way, order in hops:
            if isinstance(way, Path):
                links = way.links
            else:
                alike = self.near[way]
                links = alike[turn[way] % len(alike)].links
                turn[way] += 1
            rows.append((chunk, number.setdefault(links, len(number)), order))
        chunks, paths, orders = (np.array(column) for column in zip(*rows, strict=True))
        return played(self.topology, demand, Timeline(list(number), chunks, paths, orders.astype(float)))

    def _hops(
        self, crossings: Sequence[Crossing], inside: Sequence[Chunk], starts: Sequence[float]
    ) -> Iterator[tuple[int, Path | tuple[int, int], float]]:
        """Chunk, path or ranks of one host, and the time by which hops are ordered; what stays `inside` a host first if
        others want it, too, else last."""
        first: dict[int, float] = {}
        last = max(starts, default=0.0)
        for crossing, begins in zip(crossings, starts, strict=True):
            chunk, path, targets, _ = crossing
            source, ends = chunk.origin[0], begins + chunk.bytes * 1e-3 / path.bandwidth_GBps
            first[chunk.id] = min(begins, first.get(chunk.id, begins))
            if path.src_rank != source and path.src_rank not in chunk.want:
                yield chunk.id, (source, path.src_rank), begins
            yield chunk.id, path, begins
            for target in targets:
                if target != path.dst_rank:
                    yield chunk.id, (path.dst_rank, target), ends
        for chunk in inside:
            source = chunk.origin[0]
            due = first[chunk.id] - EARLIER_US if chunk.id in first else last
            for target in chunk.want:
                if target != source and self.host_of[target] == self.host_of[source]:
                    yield chunk.id, (source, target), due

    def _crossings(self, demand: Demand, between: Mapping[tuple[int, int], Sequence[Chunk]]) -> Iterator[Crossing]:
        """Where chunks go from host to host, each on the path whose busiest link is free first. Host by host, the next
        one first; the largest chunks of two hosts first, of equal ones each GPU's first."""
        load: dict[int, float] = defaultdict(float)

        def order(chunk: Chunk) -> tuple[float, int]:
            return -chunk.bytes, chunk.id % demand.nchunks if len(chunk.want) > 1 else 0

        for shift, a in product(range(1, len(self.hosts)), range(len(self.hosts))):
            b = (a + shift) % len(self.hosts)
            for chunk in sorted(between.get((a, b), ()), key=order):
                targets = [rank for rank in chunk.want if self.host_of[rank] == b]
                best: tuple[float, int] | None = None
                for n, path in enumerate(self.across[a, b]):
                    hops = (path.src_rank != chunk.origin[0]) + (len(targets) == 1 and path.dst_rank != targets[0])
                    takes = chunk.bytes * 1e-3 / path.bandwidth_GBps * (1 + HOP * hops)
                    ends = max(load[id] for id in path.links) + takes
                    if best is None or ends < best[0] - 1e-12:
                        best = ends, n
                assert best is not None, "hosts are joined"
                path = self.across[a, b][best[1]]
                yield Crossing(chunk, path, targets, max(load[id] for id in path.links))
                for id in path.links:
                    load[id] += chunk.bytes * self._us[id]

    def _starts(self, crossings: Sequence[Crossing]) -> list[float]:
        """When each begins if, as links fall free, those come first whose busiest link has most still to carry: so that
        links which are used together, a NIC's on either side, end together."""
        waiting: dict[Path, deque[int]] = defaultdict(deque)
        left: dict[int, float] = defaultdict(float)
        users: dict[int, list[Path]] = defaultdict(list)
        for n, (chunk, path, _, _) in enumerate(crossings):
            if path not in waiting:
                for id in path.links:
                    users[id].append(path)
            waiting[path].append(n)
            for id in path.links:
                left[id] += chunk.bytes * self._us[id]
        number = {path: n for n, path in enumerate(waiting)}
        starts, free = [0.0] * len(crossings), dict.fromkeys(left, 0.0)
        ending: list[tuple[float, int, Path]] = []
        now, ready = 0.0, set(waiting)
        while ready:
            for path in sorted(ready, key=lambda path: (-max(left[id] for id in path.links), number[path])):
                if waiting[path] and all(free[id] <= now for id in path.links):
                    n = waiting[path].popleft()
                    starts[n] = now
                    nbytes = crossings[n].chunk.bytes
                    for id in path.links:
                        free[id] = now + nbytes * self._us[id]
                        left[id] -= nbytes * self._us[id]
                    heappush(ending, (max(free[id] for id in path.links), number[path], path))
            ready = set()
            if ending:
                now = ending[0][0]
            while ending and ending[0][0] <= now:
                ready.update(user for id in heappop(ending)[2].links for user in users[id])
        return starts


def search_rails(incumbent: Incumbent, settings: Settings) -> None:
    """An alltoallv on a cluster, and any collective of all on one of unlike hosts, over a few chunk counts."""
    problem = incumbent.problem
    uneven = problem.collective == "alltoallv"
    if problem.groups or not (uneven or problem.collective in ("allgather", "reduce_scatter", "allreduce", "alltoall")):
        return
    for i, stage in enumerate(incumbent.stages):
        translations = host_translations(stage.topology)
        if translations is None:
            if len(stage.topology.hosts) < 2 or stage.topology.nranks > MOST_GPUS:
                return
            hosts = _hosts(stage.topology)
        elif uneven and translations.ranks.shape[1] > 1:
            hosts = translations.ranks.tolist()
        else:
            return
        incumbent.phase = "rails"
        rails = Rails(stage.topology, hosts, translations is not None)
        if not rails.complete:
            return
        usable = problem.chunk_counts() if settings.nchunks is None else (settings.nchunks,)
        best_us = np.inf
        for count in (settings.nchunks,) if settings.nchunks is not None else COUNTS:
            demand = stage.demand(count)
            sends = sum(len(chunk.want) for chunk in demand.chunks) * (1 if len(demand.chunks[0].want) > 1 else 3)
            late = incumbent.seconds_left <= 0 or sends > MOST_SENDS or (count not in usable and not uneven)
            if incumbent.parts[i] and late:
                break
            finishes = []
            for found in rails.schedules(demand):
                incumbent.offer(i, found)
                finishes.append(found.finish_us)
            if min(finishes) > best_us * (1 - INDIFFERENCE):
                break
            best_us = min(finishes)


def _hosts(topology: Topology) -> list[list[int]]:
    """Their ranks."""
    hosts: dict[int, list[int]] = defaultdict(list)
    for rank, gpu in enumerate(topology.gpus):
        hosts[topology.node_by_id[gpu].host].append(rank)
    return list(hosts.values())
