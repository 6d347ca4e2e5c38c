"""Hierarchy: a cluster of equal hosts, scheduled as rails between hosts times the fabric within one.

Chunks travel between hosts on rails, the GPUs at one position of every host, and within hosts on the local fabric.
The sub-problems are small: a rail is solved for the chunks of one host and moved round all hosts (one solution for
all rails that look alike), the fabric of one host stands for all hosts. (SyCCL, SIGCOMM 2025, combines orbits of
sub-problems so; rails are NCCL's PXN.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from ..collective.demand import Demand, demand_for
from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import direct_paths
from ..topology.translations import Indices, Translations, host_translations
from .incumbent import Incumbent
from .problem import Problem
from .quotient import Path, Quotient, QuotientSends, Timeline, played, shared_orbits
from .settings import Settings

#: Collectives that are scheduled by hierarchy: allgather and alltoall, and what is made of these.
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall", "alltoallv")
#: Trials of the greedy search on a rail, and ways × chunks beyond which there is only one.
RAIL_TRIALS = 8
MANY = 20_000

#: The gap that is good enough to stop at, the one at which hosts as they are need no other way, and what more chunks
#: must gain.
ENOUGH = 2e-3
GOOD = 0.05
WORTHWHILE = 5e-3

#: Solves a sub-problem: the best schedule found for it.
Solver = Callable[[Problem], Schedule]

#: Chunks, paths (numbers in the hierarchy's) and the times that order them: one entry per host.
Line = tuple[Indices, Indices, np.ndarray]


class Hop(NamedTuple):
    """A send within a host: its path, and when it starts after the first send of the same chunk."""

    path: Path
    after_us: float


#: Per share of a host's data the hops of each of the chunks that it is split in.
Hops = Mapping[int, Sequence[Sequence[Hop]]]


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A cluster's rails (one quotient per position) and the fabric of its host 0, whose ranks are the positions."""

    translations: Translations
    rails: tuple[Quotient, ...]
    host: Topology
    solver: Solver
    _solved_rails: dict[Hashable, QuotientSends] = field(default_factory=dict)
    _solved_hosts: dict[Problem, Schedule] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology, solver: Solver) -> Hierarchy | None:
        """The hierarchy of a cluster; None where its hosts are unlike, or a rail or a host falls apart without the
        others."""
        translations = host_translations(topology)
        if translations is None:
            return None
        host, rails = _host(translations), _rails(translations)
        return None if host is None or rails is None else cls(translations, rails, host, solver)

    def schedule(self, demand: Demand, share: float = 1.0) -> Schedule:
        """A schedule that meets an allgather, alltoall or alltoallv `demand`. Raises `Refused` where a rail cannot.

        An alltoallv goes the ways of an alltoall of as many bytes.

        Hosts move data as they would move that `share` of what the whole cluster sends through them: all of it for
        the best use of their links, one host's for the least latency.
        """
        uneven = demand.collective == "alltoallv"
        lines = self._lines(_evened(demand) if uneven else demand, share)
        chunk, path, order = (np.concatenate(columns) for columns in zip(*lines, strict=True))
        if uneven:
            chunk = _ids_of_pairs(demand)[chunk]
            chunk, path, order = chunk[chunk >= 0], path[chunk >= 0], order[chunk >= 0]
        return played(self.translations.topology, demand, Timeline(self._paths, chunk, path, order))

    def _lines(self, demand: Demand, share: float) -> Iterator[Line]:
        hops = self._hops(demand, share)
        return self._allgather(demand, hops) if demand.collective == "allgather" else self._alltoall(demand, hops)

    # -- collectives -----------------------------------------------------------------------------------

    def _allgather(self, demand: Demand, trees: Hops) -> Iterator[Line]:
        """Every chunk goes round its rail, and in every host, once there, over the local fabric."""
        ranks, table, c = self.translations.ranks, self.translations.table, demand.nchunks
        for p, rail in enumerate(self.rails):
            elsewhere = tuple(range(1, self.translations.count))
            sends = self._rail(p, [(demand.chunks[0].bytes, 0, elsewhere)] * c)
            there = [(0.0, 0, j) for j in range(c)]
            for j, way, start, arrival in sends.rows():
                path, host = rail.split(way)
                yield ranks[:, p] * c + j, self._rail_path(p, path, table[:, host]), self._at(start)
                there.append((arrival, int(table[host, rail.ends[path, 1]]), j))
            for turn, (time, host, j) in enumerate(sorted(there)):
                for hop in trees[p][turn % len(trees[p])]:
                    order = self._at(time + hop.after_us)
                    yield ranks[:, p] * c + j, self._local_path(hop.path, table[:, host]), order

    def _alltoall(self, demand: Demand, routes: Hops) -> Iterator[Line]:
        """Every chunk goes to the GPU of its host that is on its destination's rail, then along the rail."""
        translations, c, n = self.translations, demand.nchunks, self.host.nranks
        ranks, table, hosts = translations.ranks, translations.table, np.arange(translations.count)
        span = max((hop.after_us for ways in routes.values() for way in ways for hop in way), default=0.0)

        def chunk(p: int, host: int, q: int, j: int) -> Indices:
            ids: Indices = (ranks[:, p] * demand.nranks + ranks[table[:, host], q]) * c + j
            return ids

        def local(p: int, q: int, turn: int, ids: Indices, start: float) -> Iterator[Line]:
            ways = routes[p * n + q]
            for hop in ways[turn % len(ways)]:
                yield ids, self._local_path(hop.path, hosts), self._at(start + hop.after_us)

        for q, rail in enumerate(self.rails):
            bundles = [(host, j) for j in range(c) for host in range(1, translations.count)]
            sends = self._rail(q, [(n * demand.chunks[0].bytes, 0, (host,)) for host, _ in bundles])
            sources = sorted(range(n), key=lambda p: (p != q, (p - q) % n))
            tick = 1e-9 * max(sends.finish_us, span) / n
            turn = 0
            for bundle, way, start, _ in sends.rows():
                (target, j), (path, host) = bundles[bundle], rail.split(way)
                for i, p in enumerate(sources):
                    ids = chunk(p, target, q, j)
                    if host == 0 and p != q:
                        yield from local(p, q, turn, ids, start - span - tick)
                    yield ids, self._rail_path(q, path, table[:, host], i), self._at(start + i * tick)
                turn += host == 0
            for p in sources[1:]:
                for j in range(c):
                    yield from local(p, q, turn + j, chunk(p, 0, q, j), sends.finish_us)

    # -- sub-problems ----------------------------------------------------------------------------------

    def _rail(self, position: int, chunks: Sequence[tuple[float, int, tuple[int, ...]]]) -> QuotientSends:
        """The schedule of host 0's `chunks` on a rail, solved once for all rails that look alike."""
        rail = self.rails[position]
        key = (rail.signature, len(chunks), chunks[0])
        if key not in self._solved_rails:
            trials = RAIL_TRIALS if len(rail.paths) * rail.nranks * len(chunks) <= MANY else 1
            found = [rail.searched(chunks, seed) for seed in range(trials)]
            self._solved_rails[key] = min(found, key=lambda sends: sends.finish_us)
        return self._solved_rails[key]

    def _hops(self, demand: Demand, share: float) -> Hops:
        """How the fabric of a host moves the share of a GPU (alltoall: of a pair, source · n + target): the hops of
        each of the chunks that it is split in, which take turns.

        The times are those of the demand's chunks.
        """
        problem = Problem(self.host, demand.collective, share * demand.size_bytes)
        if problem not in self._solved_hosts:
            self._solved_hosts[problem] = self.solver(problem)
        local = self._solved_hosts[problem]
        whole = local.demand.chunks[0].bytes
        scale = demand.chunks[0].bytes / whole if whole else 1.0
        hops: list[list[Hop]] = [[] for _ in local.demand.chunks]
        began: dict[int, float] = {}
        for send in sorted(local.sends, key=lambda send: send.start_us):
            after = send.start_us - began.setdefault(send.chunk, send.start_us)
            hops[send.chunk].append(Hop(send.path, after * scale))
        count = local.demand.nchunks
        return {share: hops[share * count : (share + 1) * count] for share in range(len(hops) // count)}

    # -- paths, moved round ----------------------------------------------------------------------------

    @cached_property
    def _paths(self) -> list[Path]:
        """All paths in use: those of the rails as every translation takes them, then local ones as they come."""
        return [way for rail in self.rails for way in rail.ways]

    @cached_property
    def _twins_before(self) -> list[int]:
        """How many rails before each one have its signature."""
        signatures = [rail.signature for rail in self.rails]
        return [signatures[:p].count(signature) for p, signature in enumerate(signatures)]

    @cached_property
    def _first_path(self) -> list[int]:
        counts = [len(rail.paths) * self.translations.count for rail in self.rails]
        return [sum(counts[:p]) for p in range(len(counts))]

    def _rail_path(self, position: int, path: int, hosts: Indices, turn: int = 0) -> Indices:
        """A path of a rail at some hosts. Paths that are alike take turns: from rail to rail that has one solution
        (they may share the links of all these paths), and as `turn` says."""
        alike = self.rails[position].alike[path]
        path = alike[(alike.index(path) + turn + self._twins_before[position]) % len(alike)]
        return self._first_path[position] + path * self.translations.count + hosts

    @cached_property
    def _local_places(self) -> dict[Path, int]:
        return {}

    def _local_path(self, path: Path, hosts: Indices) -> Indices:
        if path not in self._local_places:
            self._local_places[path] = len(self._paths)
            self._paths.extend(self.translations.lifted(path))
        return self._local_places[path] + hosts

    def _at(self, time_us: float) -> np.ndarray:
        return np.full(self.translations.count, time_us)


def _evened(demand: Demand) -> Demand:
    """An alltoall of the bytes of an alltoallv, with as many chunks for each pair as its largest has."""
    total = sum(chunk.bytes for chunk in demand.chunks)
    pieces = Counter((chunk.origin[0], chunk.want[0]) for chunk in demand.chunks)
    return demand_for("alltoall", demand.nranks, total / demand.nranks, max(pieces.values(), default=1))


def _ids_of_pairs(demand: Demand) -> Indices:
    """For every chunk of `_evened` which of the alltoallv's it is, −1 where its pair has no more of them."""
    most = _evened(demand).nchunks
    ids = np.full(demand.nranks**2 * most, -1)
    taken: Counter[int] = Counter()
    for chunk in demand.chunks:
        pair = chunk.origin[0] * demand.nranks + chunk.want[0]
        ids[pair * most + taken[pair]] = chunk.id
        taken[pair] += 1
    return ids


def search_hierarchically(incumbent: Incumbent, settings: Settings, solver: Solver) -> None:
    """Every stage of a problem on a cluster of equal hosts, over the chunk counts; sub-problems go to `solver`.

    More chunks are tried for as long as they make the whole faster.
    """
    incumbent.phase = "hierarchy"
    if incumbent.problem.groups or incumbent.problem.collective not in COLLECTIVES:
        return
    hierarchies = [Hierarchy.of(stage.topology, solver) for stage in incumbent.stages]
    counts = (settings.nchunks,) if settings.nchunks is not None else incumbent.problem.chunk_counts()
    best_us = inf
    for c in counts:
        for share in (1.0, 1 / len(incumbent.problem.topology.hosts)):
            if share < 1 and incumbent.closed(GOOD):
                continue
            for i, (stage, hierarchy) in enumerate(zip(incumbent.stages, hierarchies, strict=True)):
                if hierarchy is None or (incumbent.best is not None and incumbent.seconds_left <= 0):
                    return
                incumbent.tell()
                try:
                    incumbent.offer(i, hierarchy.schedule(stage.demand(c), share))
                except Refused:  # a rail that cannot do without the others
                    return
        now_us = incumbent.best.finish_us if incumbent.best is not None else inf
        if incumbent.closed(ENOUGH) or now_us > best_us * (1 - WORTHWHILE):
            return
        best_us = now_us


def _rails(translations: Translations) -> tuple[Quotient, ...] | None:
    """For each position the direct paths from host 0 to the other hosts; None where there is none to some."""
    ranks = translations.ranks
    pairs = frozenset((int(row[p]), int(ranks[0, p])) for row in ranks[1:] for p in range(ranks.shape[1]))
    paths: list[list[Path]] = [[] for _ in ranks[0]]
    position = {int(rank): p for p, rank in enumerate(ranks[0])}
    reached = set()
    for path in direct_paths(translations.topology, frozenset((src, dst) for dst, src in pairs)):
        paths[position[path.src_rank]].append(path.links)
        reached.add((path.dst_rank, path.src_rank))
    if reached != pairs:
        return None
    shares = shared_orbits(translations, paths)
    return tuple(Quotient(translations, (p,), tuple(of), shares) for p, of in enumerate(paths))


def _host(translations: Translations) -> Topology | None:
    """Host 0 alone, its GPUs numbered by position; None where some of them reach each other only elsewhere."""
    topology = translations.topology
    first = topology.node_by_id[topology.gpus[int(translations.ranks[0, 0])]].host
    position = {topology.gpus[rank]: p for p, rank in enumerate(translations.ranks[0].tolist())}
    nodes = tuple(replace(node, rank=position.get(node.id), host=0) for node in topology.nodes if node.host == first)
    inside = {node.id for node in nodes}
    links = tuple(link for link in topology.links if link.src in inside and link.dst in inside)
    try:
        return replace(topology, name=f"a host of {topology.name}", nodes=nodes, links=links)
    except InputError:
        return None
