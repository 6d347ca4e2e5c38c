"""Direct paths: which way data goes from one GPU straight to another, with no GPU in between."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .model import Link, Topology

#: GPUs of which the direct paths of all pairs take more than a second.
MANY_GPUS = 128
#: Paths kept for an ordered pair of GPUs when more tie.
MAX_PATHS_PER_PAIR = 8

# α is compared in whole femtoseconds: sums are then exact, so that paths of the same links in another order tie.
_ALPHA_UNITS_PER_US = 1e9


@dataclass(frozen=True, slots=True)
class Path:
    """A way from GPU `src_rank` straight to GPU `dst_rank`.

    `links` are link ids in order, `alpha_us` their α summed, `bandwidth_GBps` the least of their bandwidths.
    """

    links: tuple[int, ...]
    src_rank: int
    dst_rank: int
    alpha_us: float
    bandwidth_GBps: float


def trunk(topology: Topology, links: Sequence[int]) -> int:
    """How many of a path's first links copies share that are sent together and part at or behind the first switch that
    multicasts: the links up to it; 0 where none does."""
    for count, id in enumerate(links[:-1], start=1):
        if topology.node_by_id[topology.link_by_id[id].dst].multicast:
            return count
    return 0


@lru_cache(maxsize=8)
def direct_paths(topology: Topology, pairs: frozenset[tuple[int, int]] | None = None) -> tuple[Path, ...]:
    """The paths on which each ordered pair of GPUs sends directly, sorted by (source, destination, links).

    A program names the peer of a transfer but not its path, and a runtime takes the best transport: only the
    paths through non-GPU nodes with the highest bottleneck bandwidth are kept, of these the ones with the least
    total α, of these the ones with the fewest links. Where the best path is a link that joins the two GPUs, all
    such links are paths, the narrower ones too. Of paths that tie at most `MAX_PATHS_PER_PAIR` are kept, evenly
    spaced among them and rotated by source + destination so that the pairs spread over shared links. A pair that
    only other GPUs join has no path; nor has one that only NICs of a third host join, cabled to each other's: a NIC
    passes on nothing that is not its host's. `pairs` of ranks limits the answer to them.

    For each source one widest-path search and, per distinct bottleneck, one shortest-path search:
    O(GPUs · links · log nodes), plus the paths' total length.
    """
    wanted: dict[int, set[int]] = defaultdict(set)
    if pairs is None:
        ranks = range(topology.nranks)
        wanted.update({src: set(ranks) - {src} for src in ranks})
    else:
        for src, dst in pairs:
            wanted[src].add(dst)
    links_from = _LinksFrom(topology)
    return tuple(path for src in sorted(wanted) for path in _paths_from(topology, links_from.of(src), src, wanted[src]))


@lru_cache(maxsize=8)
def on_direct_paths(topology: Topology) -> Topology:
    """The topology without the links that are on nobody's direct path, such as those of PCIe beside an NVSwitch. Of
    more than `MANY_GPUS` the topology as it is."""
    if topology.nranks > MANY_GPUS:
        return topology
    used = {id for path in direct_paths(topology) for id in path.links}
    return replace(topology, links=tuple(link for link in topology.links if link.id in used))


class _LinksFrom:
    """The links out of each node that a GPU's transfers may take: all, but for cables between NICs of other hosts."""

    def __init__(self, topology: Topology) -> None:
        self._host_of = {rank: topology.node_by_id[gpu].host for rank, gpu in enumerate(topology.gpus)}
        nic_host = {node.id: node.host for node in topology.nodes if node.kind == "nic"}
        self._cables = {x.id: nic_host[x.src] for x in topology.links if x.src in nic_host and x.dst in nic_host}
        self._all: dict[int, list[Link]] = defaultdict(list)
        for link in topology.links:
            self._all[link.src].append(link)
        self._of_host: dict[int, dict[int, list[Link]]] = {}

    def of(self, rank: int) -> Mapping[int, list[Link]]:
        if not self._cables:
            return self._all
        host = self._host_of[rank]
        if host not in self._of_host:
            links: dict[int, list[Link]] = defaultdict(list)
            for node, leaving in self._all.items():
                links[node] = [link for link in leaving if self._cables.get(link.id, host) == host]
            self._of_host[host] = links
        return self._of_host[host]


def _paths_from(
    topology: Topology, links_from: Mapping[int, list[Link]], src_rank: int, dst_ranks: Iterable[int]
) -> Iterator[Path]:
    width = _widest(topology, links_from, topology.gpus[src_rank])
    searches: dict[float, _ShortestPaths] = {}
    for dst_rank in sorted(dst_ranks):
        dst = topology.gpus[dst_rank]
        if dst_rank == src_rank or dst not in width:
            continue
        bandwidth = width[dst]
        if bandwidth not in searches:
            searches[bandwidth] = _ShortestPaths(topology, links_from, topology.gpus[src_rank], bandwidth)
        for links in sorted(searches[bandwidth].ties(dst, rotation=src_rank + dst_rank)):
            figures = [topology.link_by_id[id] for id in links]
            yield Path(
                links,
                src_rank,
                dst_rank,
                alpha_us=sum(link.alpha_us for link in figures),
                bandwidth_GBps=min(link.bandwidth_GBps for link in figures),
            )


def _widest(topology: Topology, links_from: Mapping[int, list[Link]], source: int) -> dict[int, float]:
    """The largest bottleneck bandwidth from `source` to each node that it reaches through non-GPU nodes."""
    width: dict[int, float] = {}
    queue = [(-float("inf"), source)]
    while queue:
        negative, node = heapq.heappop(queue)
        if node in width:
            continue
        width[node] = -negative
        if node == source or node not in topology.rank_of:
            for link in links_from[node]:
                if link.dst not in width:
                    heapq.heappush(queue, (-min(-negative, link.bandwidth_GBps), link.dst))
    return width


class _ShortestPaths:
    """All shortest paths, by (α, number of links), from a GPU through non-GPU nodes over links at least as wide
    as `bandwidth`: the links that end them, and how many there are."""

    def __init__(self, topology: Topology, links_from: Mapping[int, list[Link]], source: int, bandwidth: float) -> None:
        self._links_from = links_from
        self._source = source
        self._last_links: dict[int, list[Link]] = {source: []}  # node → the links that end its shortest paths
        self._count: dict[int, int] = {}  # node → its shortest paths
        distance = {source: (0, 0)}
        queue = [((0, 0), source)]
        while queue:
            here, node = heapq.heappop(queue)
            if node in self._count:
                continue
            self._count[node] = sum(self._count[link.src] for link in self._last_links[node]) or 1
            if node != source and node in topology.rank_of:
                continue
            for link in links_from[node]:
                if link.bandwidth_GBps < bandwidth:
                    continue
                there = (here[0] + round(link.alpha_us * _ALPHA_UNITS_PER_US), here[1] + 1)
                best = distance.get(link.dst)
                if best is None or there < best:
                    distance[link.dst] = there
                    self._last_links[link.dst] = [link]
                    heapq.heappush(queue, (there, link.dst))
                elif there == best:
                    self._last_links[link.dst].append(link)

    def ties(self, target: int, rotation: int) -> Collection[tuple[int, ...]]:
        """At most `MAX_PATHS_PER_PAIR` of the shortest paths to `target`."""
        if any(link.src == self._source for link in self._last_links[target]):
            parallel = [link.id for link in self._links_from[self._source] if link.dst == target]
            return [(parallel[i],) for i in _spread(len(parallel), rotation)]
        return [self._nth(target, i) for i in _spread(self._count[target], rotation)]

    def _nth(self, target: int, index: int) -> tuple[int, ...]:
        """The `index`-th of the shortest paths to `target`."""
        links: list[int] = []
        node = target
        while node != self._source:
            for link in self._last_links[node]:
                if index < self._count[link.src]:
                    break
                index -= self._count[link.src]
            links.append(link.id)
            node = link.src
        return tuple(reversed(links))


def _spread(count: int, rotation: int) -> list[int]:
    """All of 0 … count−1 or, if they are too many, evenly spaced ones (with a stride that moves through every
    factor of a product of choices at once), rotated."""
    if count <= MAX_PATHS_PER_PAIR:
        return list(range(count))
    stride = (count - 1) // (MAX_PATHS_PER_PAIR - 1)
    return [(rotation + i * stride) % count for i in range(MAX_PATHS_PER_PAIR)]
