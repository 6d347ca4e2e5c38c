"""Rails, evenly filled: an alltoallv between hosts takes the rail that has least to carry, not the one of its GPUs.

Where hosts are joined NIC by NIC, what one GPU sends and another wants loads its own NIC more than others; local links
have the bandwidth to spread it: from the source to the GPU on the chosen rail, along the rail, and to the target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np

from ..collective.demand import Chunk, Demand
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import direct_paths
from ..topology.translations import Indices, host_translations
from .incumbent import Incumbent
from .quotient import Path, Timeline, played
from .settings import Settings

#: What another hop counts against load, as a share of the chunk.
HOP = 0.05
#: Chunks for the largest pair that are tried.
COUNTS = (1, 2, 4)
#: Sends beyond which a schedule takes seconds to play.
MOST_SENDS = 50_000


class Rails:
    """The direct paths within hosts and along rails of a cluster; `ranks[host, position]` are its GPUs."""

    def __init__(self, topology: Topology, ranks: Indices) -> None:
        self.topology, self.ranks = topology, ranks
        self.place = {int(rank): divmod(i, ranks.shape[1]) for i, rank in enumerate(ranks.reshape(-1))}
        near = [(int(a), int(b)) for row in (*ranks, *ranks.T) for a, b in product(row, row) if a != b]
        self.paths: dict[tuple[int, int], list[Path]] = defaultdict(list)
        for path in direct_paths(topology, frozenset(near)):
            self.paths[path.src_rank, path.dst_rank].append(path.links)
        self.complete = all(pair in self.paths for pair in near)

    def schedule(self, demand: Demand) -> Schedule:
        """A schedule of copies from one GPU to one other each."""
        number: dict[Path, int] = {}
        turn: dict[tuple[int, int], int] = defaultdict(int)
        rows = []
        for chunk, source, target, order in self._hops(demand):
            alike = self.paths[source, target]
            path = alike[turn[source, target] % len(alike)]
            turn[source, target] += 1
            rows.append((chunk, number.setdefault(path, len(number)), order))
        chunks, paths, orders = (np.array(column) for column in zip(*rows, strict=True))
        return played(self.topology, demand, Timeline(list(number), chunks, paths, orders.astype(float)))

    def _hops(self, demand: Demand) -> Iterator[tuple[int, int, int, float]]:
        """Chunk, from rank, to rank, and the bytes that its rail has carried by then. Host by host, the next one first;
        the largest chunks of two hosts first."""
        hosts, width = self.ranks.shape
        sent, received = np.zeros((hosts, width)), np.zeros((hosts, width))
        between: dict[tuple[int, int], list[Chunk]] = defaultdict(list)
        for chunk in demand.chunks:
            (a, _), (b, _) = self.place[chunk.origin[0]], self.place[chunk.want[0]]
            between[a, b].append(chunk)
        for shift, a in product(range(1, hosts), range(hosts)):
            b = (a + shift) % hosts
            for chunk in sorted(between[a, b], key=lambda chunk: -chunk.bytes):
                source, target = chunk.origin[0], chunk.want[0]
                load = np.maximum(sent[a], received[b])
                detour = np.full(width, 2 * HOP)
                detour[self.place[source][1]] -= HOP
                detour[self.place[target][1]] -= HOP
                rail = int(np.argmin(load + detour * chunk.bytes))
                sent[a, rail] += chunk.bytes
                received[b, rail] += chunk.bytes
                stops = [source, int(self.ranks[a, rail]), int(self.ranks[b, rail]), target]
                for here, there in pairwise(stops):
                    if here != there:
                        yield chunk.id, here, there, float(load[rail])
        last = float(max(sent.max(), received.max()))
        for a in range(hosts):
            for chunk in between[a, a]:
                if chunk.origin[0] != chunk.want[0]:
                    yield chunk.id, chunk.origin[0], chunk.want[0], last


def search_rails(incumbent: Incumbent, settings: Settings) -> None:
    """An alltoallv on a cluster of equal hosts, over a few chunk counts."""
    problem = incumbent.problem
    if problem.collective != "alltoallv" or problem.groups:
        return
    translations = host_translations(problem.topology)
    if translations is None or translations.ranks.shape[1] < 2:
        return
    incumbent.phase = "rails"
    rails = Rails(problem.topology, translations.ranks)
    counts = COUNTS if settings.nchunks is None else (settings.nchunks,)
    for count in counts if rails.complete else ():
        demand = incumbent.stages[0].demand(count)
        before = incumbent.best
        if before is not None and (incumbent.seconds_left <= 0 or 3 * len(demand.chunks) > MOST_SENDS):
            return
        incumbent.offer(0, rails.schedule(demand))
        if before is not None and incumbent.best is before:
            return
