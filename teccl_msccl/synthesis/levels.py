"""Balanced levels for direct graphs: every GPU gets what starts t hops away in step t, evenly from its neighbours.

Optimal in latency and bandwidth on rings, tori, hypercubes and other symmetric graphs (breadth-first broadcast: Zhao et
al., arXiv 2202.03356; its linear program per GPU and step is solved here in whole chunks, on any graph of links between
GPUs).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import networkx as nx

from .. import _core
from ..collective.demand import Demand
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import core_demand, core_network
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths
from ..topology.translations import block_translations
from .incumbent import INDIFFERENCE, Incumbent
from .settings import Settings

#: Collectives that are made of allgathers.
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")
#: Chunk counts in a row that may bring next to nothing, and the share of the time that all may take.
PATIENCE = 3
SHARE = 0.3

#: A source, which of its chunks, and the path on which it comes.
Piece = tuple[int, int, int]


def search_levels(incumbent: Incumbent, settings: Settings) -> None:
    """Offer the schedules of balanced levels, stage by stage over the chunk counts; at least one of each stage, if any
    searcher has to."""
    incumbent.phase = "bfb"
    problem = incumbent.problem
    if not problem.named or problem.collective not in COLLECTIVES:
        return
    counts = (settings.nchunks,) if settings.nchunks is not None else problem.chunk_counts()
    for i, stage in enumerate(incumbent.stages):
        levels = Levels(stage.topology)
        if not levels.direct:
            return
        incumbent.tell()
        finish_by = time.monotonic() + (1.0 if settings.thorough else SHARE) * incumbent.seconds_left
        best_us, idle, expected = inf, 0, 0.0
        for tried, count in enumerate(counts):
            if tried and (idle == PATIENCE or time.monotonic() + expected * count > finish_by):
                break
            began = time.monotonic()
            schedule = levels.schedule(stage.demand(count))
            incumbent.offer(i, schedule)
            idle = 0 if schedule.finish_us < best_us * (1 - INDIFFERENCE) else idle + 1
            best_us = min(best_us, schedule.finish_us)
            expected = (time.monotonic() - began) / count if tried else 0.0  # the first one looks for symmetry, too
            if incumbent.closed():
                break


@dataclass(frozen=True)
class Levels:
    """An allgather's levels on `topology`."""

    topology: Topology

    @property
    def direct(self) -> bool:
        """Whether GPUs reach each other over links of their own."""
        from_first = direct_paths(self.topology, frozenset((0, rank) for rank in range(1, self.topology.nranks)))
        if any(len(path.links) > 1 for path in from_first):  # all paths would take long, and seldom say otherwise
            return False
        return all(len(path.links) == 1 for path in self._paths) and nx.is_strongly_connected(self._graph)

    def schedule(self, demand: Demand) -> Schedule:
        """The allgather's schedule: as soon as it is there and the link is free, what comes from nearest goes first, or
        what has farthest still to go, whichever ends first. O(targets · chunks · links into a GPU²), the targets those
        of one block of GPUs where all blocks are alike."""
        number = {(chunk.origin[0], chunk.id % demand.nchunks): chunk.id for chunk in demand.chunks}
        pieces = [(number[source, n], path) for source, n, path in self._pieces(demand.nchunks)]
        come = [self._hops[demand.chunks[chunk].origin[0]][self._paths[path].dst_rank] for chunk, path in pieces]
        orders = ([-hops for hops in come], self._to_go(pieces, come))
        return min((self._played(demand, pieces, order) for order in orders), key=lambda played: played.finish_us)

    def _to_go(self, pieces: Sequence[tuple[int, int]], come: Sequence[int]) -> list[int]:
        """Per piece the hops that its chunk still goes on from there."""
        beyond: dict[tuple[int, int], int] = defaultdict(int)  # (chunk, GPU) → hops onward
        to_go = [0] * len(pieces)
        for i in sorted(range(len(pieces)), key=lambda i: -come[i]):
            chunk, path = pieces[i]
            to_go[i] = beyond[chunk, self._paths[path].dst_rank]
            here = (chunk, self._paths[path].src_rank)
            beyond[here] = max(beyond[here], to_go[i] + 1)
        return to_go

    def _played(self, demand: Demand, pieces: Sequence[tuple[int, int]], priority: Sequence[int]) -> Schedule:
        links = [path.links for path in self._paths]
        chunks, ways = [chunk for chunk, _ in pieces], [path for _, path in pieces]
        network, wanted = core_network(self.topology, links), core_demand(demand)
        played = _core.dispatch(network, wanted, chunks, ways, [float(p) for p in priority])
        sends = tuple(
            Send(chunk, links[way], start)
            for chunk, way, start in zip(*(column.tolist() for column in played[:3]), strict=True)
        )
        return Schedule(self.topology, demand, sends, float(played[3].max(initial=0.0)))

    # -- what comes from where -------------------------------------------------------------------------

    def _pieces(self, nchunks: int) -> Iterator[Piece]:
        """Every GPU's, moved round from those of the first block where all blocks look alike."""
        translations = next(block_translations(self.topology), None)
        if translations is None:
            for target in range(self.topology.nranks):
                yield from self._into(target, nchunks)
            return
        ranks, table, links = translations.ranks, translations.table, translations.links
        place_of = {link.id: place for place, link in enumerate(self.topology.links)}
        path_at = {place_of[path.links[0]]: p for p, path in enumerate(self._paths)}
        where = {rank: (part, p) for part, block in enumerate(ranks.tolist()) for p, rank in enumerate(block)}
        for target in ranks[0].tolist():
            for source, number, path in self._into(target, nchunks):
                part, position = where[source]
                moved = ranks[table[:, part], position].tolist()
                ways = links[:, place_of[self._paths[path].links[0]]].tolist()
                yield from ((rank, number, path_at[way]) for rank, way in zip(moved, ways, strict=True))

    def _into(self, target: int, nchunks: int) -> Iterator[Piece]:
        """What GPU `target` gets, step by step from the neighbours that are a hop nearer to the source."""
        by_step: dict[int, list[int]] = defaultdict(list)
        for source, hops in self._hops_to(target).items():
            by_step[hops].append(source)
        load: dict[int, int] = defaultdict(int)  # path → pieces so far
        for hops in sorted(by_step):
            if hops == 0:
                continue
            options = {
                source: [p for p in self._paths_into[target] if self._hops[source][self._paths[p].src_rank] == hops - 1]
                for source in by_step[hops]
            }
            shares = balanced(options, nchunks, load, self._slowness)
            for source in by_step[hops]:
                numbers = iter(range(nchunks))
                for path, count in sorted(shares[source].items()):
                    load[path] += count
                    yield from ((source, next(numbers), path) for _ in range(count))

    def _hops_to(self, target: int) -> dict[int, int]:
        return {source: self._hops[source][target] for source in range(self.topology.nranks)}

    @cached_property
    def _paths(self) -> tuple[Path, ...]:
        return direct_paths(self.topology)

    @cached_property
    def _graph(self) -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.topology.nranks))
        graph.add_edges_from((path.src_rank, path.dst_rank) for path in self._paths)
        return graph

    @cached_property
    def _hops(self) -> Mapping[int, Mapping[int, int]]:
        return dict(nx.all_pairs_shortest_path_length(self._graph))

    @cached_property
    def _paths_into(self) -> Mapping[int, list[int]]:
        into: dict[int, list[int]] = defaultdict(list)
        for p, path in enumerate(self._paths):
            into[path.dst_rank].append(p)
        return into

    @cached_property
    def _slowness(self) -> list[float]:
        return [1.0 / path.bandwidth_GBps for path in self._paths]


def balanced(
    options: Mapping[int, Sequence[int]], count: int, load: Mapping[int, int], slowness: Sequence[float]
) -> dict[int, dict[int, int]]:
    """How many of the `count` pieces of each source come over each of its options, so that the busiest path ends as
    early as can be: (load + pieces) · slowness, the next busiest too.

    Piece by piece to the path that ends first of those that can be reached by moving others (semi-matching, Harvey et
    al., J. Algorithms 2006).
    """
    shares: dict[int, dict[int, int]] = {source: defaultdict(int) for source in options}
    taken: dict[int, int] = defaultdict(
        int, {path: load.get(path, 0) for path in {p for o in options.values() for p in o}}
    )
    for _ in range(count):
        for source in options:
            came_by: dict[int, tuple[int, int] | None] = dict.fromkeys(options[source])  # path → (from path, whose)
            queue = list(came_by)
            for path in queue:  # grows
                for other, theirs in shares.items():
                    if theirs.get(path, 0) > 0:
                        for onward in options[other]:
                            if onward not in came_by:
                                came_by[onward] = (path, other)
                                queue.append(onward)
            end = min(queue, key=lambda path: (taken[path] + 1) * slowness[path])
            taken[end] += 1
            while (moved := came_by[end]) is not None:
                end_before, whose = moved
                shares[whose][end] += 1
                shares[whose][end_before] -= 1
                end = end_before
            shares[source][end] += 1
    return shares
