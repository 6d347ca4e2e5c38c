"""Whether any schedule of whole chunks at all ends before a given time: exact, by branch and bound, for tiny cases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import networkx as nx

from teccl_msccl.collective.demand import Demand
from teccl_msccl.topology.model import Topology


@dataclass(frozen=True)
class Way:
    """A path between two ranks as the clock sees it: per link when, after the start, it is taken, and until when."""

    src: int
    dst: int
    links: tuple[int, ...]
    begins: tuple[float, ...]
    ends: tuple[float, ...]
    arrives: float


def ways(topology: Topology, nbytes: float, paths=None) -> list[Way]:
    """Every simple path from GPU to GPU through other nodes, or the given ones."""
    return [_way(topology, links, nbytes) for links in (all_paths(topology) if paths is None else paths)]


def all_paths(topology: Topology) -> list[tuple[int, ...]]:
    found = []
    for src, dst in product(topology.gpus, topology.gpus):
        if src != dst:
            between = topology.graph().subgraph({src, dst, *(n.id for n in topology.nodes if n.kind != "gpu")})
            found += [tuple(key for _, _, key in edges) for edges in nx.all_simple_edge_paths(between, src, dst)]
    return found


def _way(topology: Topology, path: tuple[int, ...], nbytes: float) -> Way:
    links = [topology.link_by_id[id] for id in path]
    begins, ends = [], []
    for k, link in enumerate(links):
        beta = nbytes / (link.bandwidth_GBps * 1e3)
        begin = 0.0
        if k:
            alpha = links[k - 1].alpha_us
            begin = max(begins[-1] + alpha, ends[-1] + alpha - beta)
        begins.append(begin)
        ends.append(begin + beta)
    ranks = topology.rank_of[links[0].src], topology.rank_of[links[-1].dst]
    return Way(*ranks, path, tuple(begins), tuple(ends), ends[-1] + links[-1].alpha_us)


def distances(n: int, paths: list[Way]) -> list[list[float]]:
    """Store and forward, from rank to rank."""
    far = [[0.0 if i == j else float("inf") for j in range(n)] for i in range(n)]
    for way in paths:
        far[way.src][way.dst] = min(far[way.src][way.dst], way.arrives)
    for k, i, j in product(range(n), repeat=3):
        far[i][j] = min(far[i][j], far[i][k] + far[k][j])
    return far


class CopySearch:
    """Schedules that copy. All chunks of one size; every rank receives a chunk at most once.

    Sends are appended one by one, each as early as its data and its links allow behind those before. Of two
    neighbours that share nothing only one order is tried.
    """

    def __init__(self, topology: Topology, demand: Demand, paths: list[tuple[int, ...]] | None = None) -> None:
        self.n = topology.nranks
        self.demand = demand
        self.ways = ways(topology, demand.chunks[0].bytes, paths)
        self.far = distances(self.n, self.ways)
        self.last_links: dict[int, tuple[int, float, float, float]] = {}
        for way in sorted(self.ways, key=lambda way: -way.begins[-1]):
            alpha = topology.link_by_id[way.links[-1]].alpha_us
            self.last_links[way.links[-1]] = way.dst, way.begins[-1], way.ends[-1] - way.begins[-1], alpha

    def beats(self, target: float, steps: int = 20_000) -> bool | None:
        """Whether some schedule ends before `target`; None if that takes more than `steps` partial schedules."""
        self.target, self.steps = target, steps
        there = {(chunk.id, chunk.origin[0]): 0.0 for chunk in self.demand.chunks}
        missing = {(chunk.id, w) for chunk in self.demand.chunks for w in chunk.want if w not in chunk.origin}
        return self._search(there, {}, missing, (-1, -1))

    def _search(self, there, free, missing, last) -> bool | None:
        if not missing:
            return True
        self.steps -= 1
        if self.steps < 0:
            return None
        if not all(self._reachable(there, c, w) for c, w in missing) or not self._room(free, missing):
            return False
        for p, way in enumerate(self.ways):
            for chunk in range(len(self.demand.chunks)):
                ready = there.get((chunk, way.src))
                if ready is None or (chunk, way.dst) in there or self._out_of_order(p, chunk, last):
                    continue
                start = max([ready, *(free.get(link, 0.0) - b for link, b in zip(way.links, way.begins, strict=True))])
                arrival = start + way.arrives
                if not any(arrival + self.far[way.dst][w] < self.target for c, w in missing if c == chunk):
                    continue
                taken = {link: start + e for link, e in zip(way.links, way.ends, strict=True)}
                place = {(chunk, way.dst)}
                found = self._search(there | dict.fromkeys(place, arrival), free | taken, missing - place, (p, chunk))
                if found is not False:
                    return found
        return False

    def _reachable(self, there, chunk, want) -> bool:
        return any(
            time + self.far[rank][want] < self.target for (c, rank), time in there.items() if c == chunk
        )  # fmt: skip

    def _room(self, free, missing) -> bool:
        """Whether the last links into every rank have time for as many chunks as it misses."""
        slots = [0] * self.n
        for link, (rank, begin, beta, alpha) in self.last_links.items():
            slots[rank] += max(0, int((self.target - alpha - max(begin, free.get(link, 0.0))) / beta + 1e-9))
        return all(slots[rank] >= sum(w == rank for _, w in missing) for rank in range(self.n))

    def _out_of_order(self, p: int, chunk: int, last: tuple[int, int]) -> bool:
        if last[0] < 0 or (p, chunk) > last:
            return False
        before, way = self.ways[last[0]], self.ways[p]
        shares_data = last[1] == chunk and before.dst in (way.src, way.dst)
        return not shares_data and not set(before.links) & set(way.links)


class AllreduceSearch:
    """Schedules that reduce and spread every chunk; a rank may pass its share on along any way, and copies what is
    complete. No contribution may come after a rank's share has gone."""

    def __init__(self, topology: Topology, demand: Demand) -> None:
        self.n = topology.nranks
        self.nchunks = len(demand.chunks)
        self.ways = ways(topology, demand.chunks[0].bytes)
        self.far = distances(self.n, self.ways)
        self.everyone = frozenset(range(self.n))

    def beats(self, target: float, steps: int = 20_000) -> bool | None:
        """Whether some schedule ends before `target`; None if that takes more than `steps` partial schedules."""
        self.steps = steps
        if max(max(row) for row in self.far) >= target:
            return False
        self.target = target
        held = {(c, v): (frozenset({v}), 0.0, False) for c in range(self.nchunks) for v in range(self.n)}
        return self._search(held, {}, (-1, -1))

    def _search(self, held, free, last) -> bool | None:
        if all(content == self.everyone for content, _, _ in held.values()):
            return True
        self.steps -= 1
        if self.steps < 0:
            return None
        for p, way in enumerate(self.ways):
            for chunk in range(self.nchunks):
                content, ready, _ = held[chunk, way.src]
                there, since, gone = held[chunk, way.dst]
                copies = content == self.everyone
                if there == self.everyone or (not copies and (gone or content & there)):
                    continue
                if self._out_of_order(p, chunk, last):
                    continue
                start = max([ready, *(free.get(link, 0.0) - b for link, b in zip(way.links, way.begins, strict=True))])
                arrival = start + way.arrives
                if arrival >= self.target:
                    continue
                after = dict(held)
                after[chunk, way.src] = (content, ready, held[chunk, way.src][2] or not copies)
                after[chunk, way.dst] = (content | there, arrival if copies else max(arrival, since), gone)
                taken = {link: start + e for link, e in zip(way.links, way.ends, strict=True)}
                found = self._search(after, free | taken, (p, chunk))
                if found is not False:
                    return found
        return False

    def _out_of_order(self, p: int, chunk: int, last: tuple[int, int]) -> bool:
        if last[0] < 0 or (p, chunk) > last:
            return False
        before, way = self.ways[last[0]], self.ways[p]
        shares_data = last[1] == chunk and {before.src, before.dst} & {way.src, way.dst}
        return not shares_data and not set(before.links) & set(way.links)
