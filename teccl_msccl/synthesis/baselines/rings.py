"""Rings as NCCL looks for them: Hamiltonian cycles over the links, as many and as wide as the links allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf

import networkx as nx

from ...topology.model import Topology
from ...topology.paths import Path, direct_paths
from .plan import gpu_graph

#: Rings at most (NCCL's channels), shares of a link's bandwidth that a ring may take, and steps of one search.
MOST_RINGS = 16
SHARES = (1, 2, 3, 4, 6, 8)
BUDGET = 3_000
#: Distances between GPUs are those of a message of this size.
NEARNESS_BYTES = 1e6

Ring = tuple[int, ...]


@lru_cache(maxsize=32)
def find_rings(topology: Topology, members: tuple[int, ...]) -> tuple[Ring, ...]:
    """Cyclic orders of `members` (ranks) whose neighbours have direct paths, hosts contiguous and in order.

    For every speed that is a link's bandwidth or a whole share of it, rings are taken out of the links' bandwidth one
    after another until none is left (depth-first search, ranks least connected first, within a budget); the speed
    whose rings carry most in all is chosen, with the fewest rings. Where there is none at all: the nearest-neighbour
    order over GPU paths, both ways.
    """
    if len(members) < 2:
        return (members,)
    hosts = by_host(topology, members)
    paths = _paths_between(topology, hosts)
    widths = {path.bandwidth_GBps for options in paths.values() for path in options}
    best: tuple[Ring, ...] = ()
    carried = 0.0
    most = min(sum(link.bandwidth_GBps for link in topology.links if link.src == topology.gpus[r]) for r in members)
    for speed in sorted({width / share for width in widths for share in SHARES}, reverse=True):
        found = tuple(_rings_at(topology, hosts, paths, speed))
        if speed * len(found) > carried * (1 + 1e-9):
            best, carried = found, speed * len(found)
        if carried >= most * (1 - 1e-9):
            break
    if best:
        return best
    order = _nearest_neighbours(topology, members)
    return (order, order[::-1])


def by_host(topology: Topology, members: Sequence[int]) -> list[list[int]]:
    """The members of each host, hosts ascending."""
    hosts: dict[int, list[int]] = defaultdict(list)
    for rank in members:
        hosts[topology.node_by_id[topology.gpus[rank]].host].append(rank)
    return [hosts[host] for host in sorted(hosts)]


def _paths_between(topology: Topology, hosts: Sequence[Sequence[int]]) -> Mapping[tuple[int, int], list[Path]]:
    """Direct paths within each host, and from each to the next."""
    pairs = set()
    for here, following in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        pairs |= {(a, b) for a in here for b in (*here, *following) if a != b}
    paths: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for path in direct_paths(topology, frozenset(pairs)):
        paths[path.src_rank, path.dst_rank].append(path)
    return paths


def _rings_at(
    topology: Topology, hosts: Sequence[list[int]], paths: Mapping[tuple[int, int], list[Path]], speed: float
) -> Iterator[Ring]:
    """Rings of `speed`, one after another, until the links have no more."""
    left = {link.id: link.bandwidth_GBps for link in topology.links}
    for number in range(MOST_RINGS):
        begin = number % len(hosts[0])
        search = _RingSearch(hosts, paths, left, speed)
        ring = next(filter(None, (search.ring(s) for s in hosts[0][begin:] + hosts[0][:begin])), None)
        if ring is None:
            return
        yield ring


class _RingSearch:
    """One ring of `speed`, host after host; its bandwidth is taken out of `left`."""

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        paths: Mapping[tuple[int, int], list[Path]],
        left: dict[int, float],
        speed: float,
    ) -> None:
        self.hosts, self.paths, self.left, self.speed = hosts, paths, left, speed
        self.budget = BUDGET

    def ring(self, start: int) -> Ring | None:
        order = self._through(0, start, start)
        return None if order is None else tuple(order)

    def _through(self, host: int, entry: int, start: int) -> list[int] | None:
        """From `entry` through this host and all later ones, and back to `start`."""
        last = host + 1 == len(self.hosts)
        members = self.hosts[host]
        for leaving in _behind(members, entry):
            for target in [start] if last else sorted(self.hosts[host + 1], key=self._preference(leaving)):
                out = self._take(leaving, target)
                if out is None:
                    continue
                inside, taken = self._within(members, entry, leaving)
                if inside:
                    rest = [] if last else self._through(host + 1, target, start)
                    if rest is not None:
                        return inside + rest
                for path in (out, *taken):
                    self._put_back(path)
                if self.budget <= 0:
                    return None
        return None

    def _within(self, members: Sequence[int], entry: int, leaving: int) -> tuple[list[int], list[Path]]:
        """A way from `entry` to `leaving` that meets every member once, and the paths that it takes; or nothing."""
        order: list[int] = [entry]
        taken: list[Path] = []
        options = [self._onward(members, order, leaving)]
        while len(order) < len(members):
            self.budget -= 1
            rank = next(options[-1], None) if self.budget > 0 else None
            if rank is not None:
                path = self._take(order[-1], rank)
                if path is None:
                    continue
                taken.append(path)
                order.append(rank)
                options.append(self._onward(members, order, leaving))
            elif taken:
                options.pop()
                order.pop()
                self._put_back(taken.pop())
            else:
                return [], []
        return order, taken

    def _onward(self, members: Sequence[int], order: Sequence[int], leaving: int) -> Iterator[int]:
        """Where to go on to: those that have fewest ways on themselves, then the next in rank."""
        here, size = members.index(order[-1]), len(members)
        unseen = [rank for rank in members if rank not in order]
        if len(unseen) > 1:
            unseen.remove(leaving)
        reachable = [rank for rank in unseen if self._open(order[-1], rank) is not None]
        ways_on = {rank: sum(self._open(rank, other) is not None for other in unseen if other != rank)
                   for rank in reachable}  # fmt: skip
        return iter(sorted(reachable, key=lambda rank: (ways_on[rank], (members.index(rank) - here) % size)))

    def _preference(self, src: int) -> Callable[[int], tuple[float, float, int]]:
        """Sorts the ranks that `src` may go to: widest path first, then least latency."""

        def key(dst: int) -> tuple[float, float, int]:
            options = self.paths.get((src, dst), ())
            return min(((-path.bandwidth_GBps, path.alpha_us, dst) for path in options), default=(inf, inf, dst))

        return key

    def _open(self, src: int, dst: int) -> Path | None:
        """A path with `speed` left on every link."""
        enough = self.speed * (1 - 1e-9)
        for path in self.paths.get((src, dst), ()):
            if all(self.left[link] >= enough for link in path.links):
                return path
        return None

    def _take(self, src: int, dst: int) -> Path | None:
        path = self._open(src, dst)
        if path is not None:
            for link in path.links:
                self.left[link] -= self.speed
        return path

    def _put_back(self, path: Path) -> None:
        for link in path.links:
            self.left[link] += self.speed


def _behind(members: Sequence[int], entry: int) -> list[int]:
    """Where to leave a host that was entered at `entry`: at the member before it, or the one before that…"""
    where = members.index(entry)
    return [members[where - i] for i in range(1, len(members))] or [entry]


def _nearest_neighbours(topology: Topology, members: Sequence[int]) -> Ring:
    """From the first member on always to the nearest one that is left, over GPU paths."""
    distance = dict(nx.all_pairs_dijkstra_path_length(gpu_graph(topology, NEARNESS_BYTES), weight="us"))
    order, left = [members[0]], list(members[1:])
    while left:
        here = distance[order[-1]]
        order.append(min(left, key=lambda rank: (here[rank], rank)))
        left.remove(order[-1])
    return tuple(order)
