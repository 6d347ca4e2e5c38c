"""Routes: who sends which chunk on which path when, in the core's arrays, and what the core's searches do to them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..collective.demand import Demand
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import core_demand, core_network
from ..topology.model import Topology
from ..topology.paths import direct_paths

#: Links more than the shortest between two hosts have, in narrower networks.
DETOURS = (1, 2)
#: A path of more links than this must find many free at once: links that only such paths cross are never busy all the
#: time, and packed as if they had but these shares of their bandwidth.
SHORT = 2
EASINGS = (1.0, 0.85)
#: Times that differ by this share are one.
_SAME_TIME = 1e-9


@dataclass(frozen=True, slots=True)
class Routes:
    """Sends as arrays: chunk, path number, start and arrival in µs, in an order in which data flows."""

    chunk: NDArray[np.int64]
    way: NDArray[np.int64]
    start_us: NDArray[np.float64]
    arrival_us: NDArray[np.float64]

    @property
    def finish_us(self) -> float:
        return float(self.arrival_us.max(initial=0.0))

    def lists(self) -> tuple[list[int], list[int], list[float], list[float]]:
        return self.chunk.tolist(), self.way.tolist(), self.start_us.tolist(), self.arrival_us.tolist()

    def delayed(self, by_chunk_us: NDArray[np.float64]) -> Routes:
        """Every chunk's sends later by its entry."""
        delay = by_chunk_us[self.chunk]
        return Routes(self.chunk, self.way, self.start_us + delay, self.arrival_us + delay)


@dataclass
class RouteSearch:
    """The core's searches for routes over a network, which `schedule` makes a schedule that meets `demand`.

    All are deterministic for their seeds, and let go of Python's lock. `turns` has for every chunk that is routed its
    turn, 0 … 1, among those of its origin.
    """

    topology: Topology
    demand: Demand
    paths: list[tuple[int, ...]] = field(init=False)
    turns: NDArray[np.float64] = field(init=False)
    _network: _core.Network = field(init=False)
    _demand: _core.Demanded = field(init=False)

    def schedule(self, routes: Routes) -> Schedule:
        """The schedule of feasible routes, left-shifted."""
        raise NotImplementedError

    def routes(self, schedule: Schedule) -> Routes | None:
        """The routes of a schedule; None where they cannot be told on this network."""
        return None

    @property
    def detours(self) -> tuple[int | None, ...]:
        """Networks no wider than this one (None), the narrowest first: see `within`."""
        return (None,)

    def within(self, detour: int | None) -> RouteSearch:
        """The same over paths with at most so many links more than the shortest between their hosts (None: all)."""
        assert detour is None
        return self

    @property
    def easings(self) -> tuple[float, ...]:
        """What `packed` may be told to leave of the links that only long paths cross."""
        return (1.0,)

    def packed(
        self, depth_weight: float, rounds: int, enough_us: float, seed: int, eased: float = 1.0
    ) -> tuple[Routes, float]:
        """A tree per chunk (for allreduce one in and one out), timed as if links were not shared, and how long the
        busiest link is occupied, had links that only long paths cross but the share `eased` of their bandwidth. Raises
        ValueError when a GPU cannot be reached."""
        sends, busiest_us = _core.pack_trees(self._eased(eased), self._demand, depth_weight, rounds, enough_us, seed)
        return Routes(*sends), busiest_us

    def _eased(self, share: float) -> _core.Network:
        assert share == 1.0
        return self._network

    def justified(
        self, routes: Routes, *, shared: bool = False, rounds: int = 0, noise: float = 0, seed: int = 0
    ) -> Routes:
        """The same sends on the same paths, reordered for an earlier finish; `shared`: their times are not feasible."""
        return Routes(*_core.justify(self._network, self._demand, *routes.lists(), shared, rounds, noise, seed))

    def dispatched(self, routes: Routes, *, load_weight: float, noise: float, seed: int) -> Routes:
        """The same sends on the same paths, those first after which the longest way is to go, less the time at which
        their chunk begins, and whose links have most to carry yet. Other times say only what waits for what."""
        sends = _core.dispatch_longest_first(self._network, self._demand, *routes.lists(), load_weight, noise, seed)
        return Routes(*sends)

    def in_turn(self, chunks: list[int], ways: list[int], turns: list[float]) -> Routes:
        """Sends (chunk, path number) that start as links fall free, of those that are ready the least of `turns`."""
        sent = Routes(*_core.dispatch(self._network, self._demand, chunks, ways, turns))
        order = np.argsort(sent.start_us, kind="stable")
        return Routes(sent.chunk[order], sent.way[order], sent.start_us[order], sent.arrival_us[order])

    def rerouted(self, routes: Routes, target_us: float, moves: int, seed: int) -> Routes:
        """Chunks that arrive after `target_us` torn out and put back, `moves` times."""
        return Routes(*_core.reroute(self._network, self._demand, *routes.lists(), target_us, moves, True, seed))


@dataclass
class Router(RouteSearch):
    """Routes on `topology`, on the direct paths and those in `extra`, or `only` on some."""

    extra: Iterable[tuple[int, ...]] = ()
    only: Sequence[tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        usual = [path.links for path in direct_paths(self.topology)] if self.only is None else self.only
        self.paths = list(dict.fromkeys((*usual, *self.extra)))
        self.turns = turns([chunk.origin for chunk in self.demand.chunks])
        self._network = core_network(self.topology, self.paths)
        self._demand = core_demand(self.demand)

    def routes(self, schedule: Schedule) -> Routes:
        """The routes of a schedule whose paths are all known here."""
        number = {path: i for i, path in enumerate(self.paths)}
        ordered = sorted(schedule.sends, key=lambda send: send.start_us)
        return Routes(
            np.array([send.chunk for send in ordered], dtype=np.int64),
            np.array([number[send.path] for send in ordered], dtype=np.int64),
            np.array([send.start_us for send in ordered]),
            np.array([schedule.arrival_us(send) for send in ordered]),
        )

    @property
    def detours(self) -> tuple[int | None, ...]:
        return tuple(self._narrower)

    def within(self, detour: int | None) -> Router:
        return self._narrower[detour]

    @cached_property
    def _narrower(self) -> Mapping[int | None, Router]:
        """The networks of `detours`, each once, as far as they join all GPUs."""
        networks: dict[tuple[tuple[int, ...], ...], tuple[int | None, Router]] = {}
        longer = self._links_beyond_shortest
        for detour in DETOURS if any(longer) else ():
            paths = tuple(path for path, links in zip(self.paths, longer, strict=True) if links <= detour)
            joined = nx.DiGraph(map(self._ends, paths))
            joined.add_nodes_from(self.topology.gpus)
            if nx.is_strongly_connected(joined):
                networks.setdefault(paths, (detour, Router(self.topology, self.demand, only=paths)))
        networks[tuple(self.paths)] = (None, self)
        return dict(networks.values())

    @cached_property
    def _links_beyond_shortest(self) -> list[int]:
        """Per path how many links more it has than the shortest between its two hosts; 0 within a host."""
        host = {gpu: self.topology.node_by_id[gpu].host for gpu in self.topology.gpus}
        joined = [tuple(host[gpu] for gpu in self._ends(path)) for path in self.paths]
        fewest: dict[tuple[int, ...], int] = {}
        for hosts, path in zip(joined, self.paths, strict=True):
            fewest[hosts] = min(len(path), fewest.get(hosts, len(path)))
        return [
            len(path) - fewest[hosts] if len({*hosts}) > 1 else 0
            for hosts, path in zip(joined, self.paths, strict=True)
        ]

    def _ends(self, path: tuple[int, ...]) -> tuple[int, int]:
        links = self.topology.link_by_id
        return links[path[0]].src, links[path[-1]].dst

    @property
    def easings(self) -> tuple[float, ...]:
        return EASINGS if self._crossed_far else EASINGS[:1]

    def _eased(self, share: float) -> _core.Network:
        if share == 1.0:
            return self._network
        links = (
            replace(link, bandwidth_GBps=link.bandwidth_GBps * (share if link.id in self._crossed_far else 1.0))
            for link in self.topology.links
        )
        return core_network(replace(self.topology, links=tuple(links)), self.paths)

    @cached_property
    def _crossed_far(self) -> set[int]:
        """Links that only long paths cross, where there are others."""
        near = {link for path in self.paths if len(path) <= SHORT for link in path}
        return {link for path in self.paths for link in path} - near if near else set()

    def schedule(self, routes: Routes) -> Schedule:
        """The schedule of feasible routes, left-shifted."""
        chunks, ways, starts, _ = routes.lists()
        sends = [Send(chunk, self.paths[way], start) for chunk, way, start in zip(chunks, ways, starts, strict=True)]
        schedule = Schedule(self.topology, self.demand, tuple(sends), routes.finish_us)
        if self.demand.reducing:
            schedule = Schedule(self.topology, self.demand, tuple(_merging(schedule)), routes.finish_us)
        return schedule.retimed()


def turns(origins: Iterable[Hashable]) -> NDArray[np.float64]:
    """0 … 1: each chunk's turn among those of its origin or, where all ranks are the origin, among all."""
    taken: dict[Hashable, int] = {}
    turn = []
    for origin in origins:
        turn.append(taken.get(origin, 0))
        taken[origin] = turn[-1] + 1
    return np.array(turn, dtype=np.float64) / max(1, max(taken.values(), default=1) - 1)


def _merging(schedule: Schedule) -> Iterator[Send]:
    """The sends, those of a chunk that is to be reduced as reductions until their GPU has every contribution."""
    chunks = schedule.demand.chunks
    held = {(c.id, rank): {rank} for c in chunks if c.reduce for rank in c.origin}
    coming: list[tuple[float, int, tuple[int, int], frozenset[int]]] = []
    for i, send in enumerate(sorted(schedule.sends, key=lambda send: send.start_us)):
        if not chunks[send.chunk].reduce:
            yield send
            continue
        while coming and coming[0][0] <= send.start_us + _SAME_TIME * max(1.0, send.start_us):
            _, _, place, contributions = heappop(coming)
            held.setdefault(place, set()).update(contributions)
        source, target = schedule.ends(send)
        contributions = frozenset(held[send.chunk, source])
        heappush(coming, (schedule.arrival_us(send), i, (send.chunk, target), contributions))
        yield send._replace(reduce=len(contributions) < len(chunks[send.chunk].origin))
