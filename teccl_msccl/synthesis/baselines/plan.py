"""A plan: who passes which chunk to whom, in steps; and how it becomes a schedule on real links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import networkx as nx

from ...collective.demand import Chunk, Demand
from ...errors import Refused
from ...schedule.schedule import Schedule, Send
from ...topology.model import Topology
from ...topology.paths import Path, direct_paths


class Hop(NamedTuple):
    """In `step`, rank `src` passes `chunk` to rank `dst`. Within a step no hop needs another of it."""

    step: int
    chunk: int
    src: int
    dst: int


class Team(NamedTuple):
    """The ranks that a collective is among, and its chunks: all ranks, or one of several groups at once."""

    members: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def shares(self) -> Mapping[int, list[int]]:
        """The chunks that each rank begins with, in order."""
        found: dict[int, list[int]] = {rank: [] for rank in self.members}
        for chunk in self.chunks:
            found[chunk.origin[0]].append(chunk.id)
        return found


Planner = Callable[[Topology, Team], Iterable[Hop]]


@dataclass(frozen=True)
class Baseline:
    """An algorithm of the field: the collectives that it is defined for, and its planners (variants; the fastest is
    taken), which see copies only: reductions are their mirror images.

    `pieces` is how many chunks a share needs for the algorithm to be itself (one per ring, say); `root` picks where a
    chunk that everyone wants reduced is gathered (None: in equal blocks, at every rank of its team).
    """

    name: str
    serves: tuple[str, ...]
    planners: tuple[Planner, ...]
    pieces: Callable[[Topology, Sequence[Team]], int] = lambda topology, teams: 1
    root: Callable[[Topology, tuple[int, ...], int], int] | None = None


def teams_of(demand: Demand) -> tuple[Team, ...]:
    """All ranks, or the groups, each with its chunks."""
    if not demand.groups:
        return (Team(tuple(range(demand.nranks)), demand.chunks),)
    of: dict[int, list[Chunk]] = defaultdict(list)
    for chunk in demand.chunks:
        of[chunk.group].append(chunk)
    return tuple(Team(group.ranks, tuple(of[i])) for i, group in enumerate(demand.groups))


def scheduled(topology: Topology, demand: Demand, hops: Iterable[Hop]) -> Schedule:
    """The copies of a plan on direct paths, timed by the event simulation.

    Ranks without a direct path reach each other through other GPUs. What a GPU has, it is not sent again. Links serve
    first come, first served, or in the order of the steps, whichever ends first.
    """
    legs = _Relays(topology, demand).legs(sorted(hops))
    arriving = _first_come(topology, demand, legs)
    in_steps = [arriving[i]._replace(start_us=0.0) for i in range(len(legs))]
    candidates = [sorted(arriving.values(), key=lambda send: send.start_us), in_steps]
    schedules = [Schedule(topology, demand, tuple(sends), 0.0).retimed() for sends in candidates]
    return min(schedules, key=lambda schedule: schedule.finish_us)


class _Relays:
    """Turns hops into legs between GPUs with direct paths, each GPU getting a chunk at most once."""

    def __init__(self, topology: Topology, demand: Demand) -> None:
        self.topology, self.demand = topology, demand
        self.holders = {chunk.id: set(chunk.origin) for chunk in demand.chunks}
        self.bytes = max((chunk.bytes for chunk in demand.chunks), default=0.0)
        self._routes: dict[tuple[int, frozenset[int] | None], Mapping[int, list[int]]] = {}

    def legs(self, hops: Sequence[Hop]) -> list[Hop]:
        straight = {(p.src_rank, p.dst_rank) for p in direct_paths(self.topology, _pairs(hops))}
        legs = []
        for hop in hops:
            route = [hop.src, hop.dst] if (hop.src, hop.dst) in straight else self._route(hop)
            holders = self.holders[hop.chunk]
            nearest = max((i for i, rank in enumerate(route) if rank in holders), default=None)
            assert nearest is not None, f"rank {hop.src} passes on chunk {hop.chunk} before it has it"
            legs += [hop._replace(src=a, dst=b) for a, b in pairwise(route[nearest:])]
            holders.update(route[nearest:])
        return legs

    def _route(self, hop: Hop) -> list[int]:
        """The quickest way for a chunk from GPU to GPU, store and forward, inside its group where that is confined."""
        allowed = self.demand.holders(self.demand.chunks[hop.chunk])
        if (hop.src, allowed) not in self._routes:
            graph = self._graph if allowed is None else self._graph.subgraph(allowed)
            self._routes[hop.src, allowed] = nx.single_source_dijkstra_path(graph, hop.src, weight="us")
        if hop.dst not in self._routes[hop.src, allowed]:
            raise Refused(
                f"{self.topology.name}: GPU {hop.dst} cannot be reached by chunk {hop.chunk} of GPU {hop.src}"
            )
        return self._routes[hop.src, allowed][hop.dst]

    @cached_property
    def _graph(self) -> nx.DiGraph:
        return gpu_graph(self.topology, self.bytes)


def gpu_graph(topology: Topology, nbytes: float) -> nx.DiGraph:
    """The GPUs' ranks, and the time that `nbytes` take between those with a direct path as `us`."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.nranks))
    for path in direct_paths(topology):
        us = path.alpha_us + nbytes / (path.bandwidth_GBps * 1e3)
        known = graph.get_edge_data(path.src_rank, path.dst_rank)
        if known is None or us < known["us"]:
            graph.add_edge(path.src_rank, path.dst_rank, us=us)
    return graph


def _pairs(hops: Iterable[Hop]) -> frozenset[tuple[int, int]]:
    return frozenset((hop.src, hop.dst) for hop in hops)


def _first_come(topology: Topology, demand: Demand, legs: Sequence[Hop]) -> dict[int, Send]:
    """Play the legs as their data arrives, of two at once the one of greater weight first, each on the path that brings
    it there first. O(legs · paths · log legs)."""
    ways: dict[tuple[int, int], list[_Way]] = defaultdict(list)
    for path in direct_paths(topology, _pairs(legs)):
        ways[path.src_rank, path.dst_rank].append(_Way(topology, path))
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    priority = (
        [-demand.group_of(chunk).weight for chunk in demand.chunks] if demand.groups else [0.0] * len(demand.chunks)
    )
    queue = []
    for i, leg in enumerate(legs):
        if leg.src in demand.chunks[leg.chunk].origin:
            queue.append((0.0, priority[leg.chunk], i))
        else:
            waiting[leg.chunk, leg.src].append(i)
    heapify(queue)
    free_from: dict[int, float] = defaultdict(float)
    sends = {}
    while queue:
        ready, _, i = heappop(queue)
        leg, nbytes = legs[i], demand.chunks[legs[i].chunk].bytes
        options = ways[leg.src, leg.dst]
        start, way = options[0].start(ready, nbytes, free_from), options[0]
        for other in options[1:]:
            later = other.start(ready, nbytes, free_from)
            if later + other.takes(nbytes) < start + way.takes(nbytes):
                start, way = later, other
        arrival = start + way.takes(nbytes)
        way.occupy(start, nbytes, free_from)
        sends[i] = Send(leg.chunk, way.path.links, start)
        for waiter in waiting.pop((leg.chunk, leg.dst), ()):
            heappush(queue, (arrival, priority[leg.chunk], waiter))
    return sends


class _Way:
    """A direct path and, per size, when each of its links is taken."""

    def __init__(self, topology: Topology, path: Path) -> None:
        self.path = path
        self._links = [topology.link_by_id[id] for id in path.links]
        self._known: dict[float, list[tuple[int, float, float]]] = {}

    def takes(self, nbytes: float) -> float:
        """From the start to the arrival."""
        return self.path.alpha_us + nbytes / (self.path.bandwidth_GBps * 1e3)

    def _windows(self, nbytes: float) -> list[tuple[int, float, float]]:
        """Each link's time of occupation, relative to the start: cut-through, as `Schedule.validate` has it."""
        if nbytes not in self._known:
            head, rate = 0.0, float("inf")
            windows = self._known[nbytes] = []
            for link in self._links:
                rate = min(rate, link.bandwidth_GBps * 1e3)
                tail = head + nbytes / rate
                windows.append((link.id, tail - link.beta_us(nbytes), tail))
                head += link.alpha_us
        return self._known[nbytes]

    def start(self, ready: float, nbytes: float, free_from: Mapping[int, float]) -> float:
        """The first time from `ready` on at which every link is free when the chunk comes to it."""
        for link, begin, _ in self._windows(nbytes):
            ready = max(ready, free_from[link] - begin)
        return ready

    def occupy(self, start: float, nbytes: float, free_from: dict[int, float]) -> None:
        for link, _, end in self._windows(nbytes):
            free_from[link] = start + end
