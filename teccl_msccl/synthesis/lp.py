"""TE-CCL's LP for collectives in which nothing is copied: from the maximum concurrent flow to a schedule."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import Any

from .. import _core
from ..collective.demand import Demand
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import core_demand, core_network
from ..topology.model import Topology
from ..topology.paths import Path, direct_paths
from .colouring import edge_colours
from .even import EvenPart, Wanted
from .flow import MAX_COLUMNS, ConcurrentFlow, bytes_between, concurrent_flow, flow_columns
from .incumbent import INDIFFERENCE, Incumbent
from .rounding import Pair, Route, round_to_chunks
from .settings import Settings

#: A gap that finer chunks need not close.
ENOUGH = 5e-3
#: The part of the time that is left which the linear program may take, where other searchers wait for their turn; and
#: what it may take at the least.
FLOW_SHARE = 0.5
LEAST_FLOW_S = 0.3
#: Orders tried for every choice of routes, and by how much random draws change a priority in each.
NOISES = (0.0, 0.1, 0.3)
#: Ties kept among the quickest routes of a pair.
MAX_ROUTES = 6
#: Links at least this share as busy as the busiest take turns.
BUSY = 0.9
#: Pairs of GPUs whose data is too much to follow one by one, and chunks that are only routed alike for all.
MOST_PAIRS = 20_000
MOST_CHUNKS_APART = 4_000
#: Flow below this share of what a pair wants is rounding.
_LEAST_SHARE = 1e-6


def search_flow(incumbent: Incumbent, settings: Settings) -> None:
    """Offer schedules that follow the maximum concurrent flow, for every stage in which nothing is copied."""
    incumbent.phase = "lp"
    counts = (settings.nchunks,) if settings.nchunks is not None else incumbent.problem.chunk_counts()
    for i, stage in enumerate(incumbent.stages):
        demand = stage.demand(counts[0])
        if not demand.copy_free or not all(chunk.bytes for chunk in demand.chunks):
            continue  # what has no bytes is nobody's flow
        if any(group.confined for group in demand.groups):
            continue  # the flow knows no groups
        seconds = inf if settings.thorough else max(LEAST_FLOW_S, FLOW_SHARE * incumbent.seconds_left)
        routing = FlowRouting(stage.topology, bytes_between(demand), seconds)
        if not routing.wanted or not (settings.thorough or routing.small):
            continue
        best, spent = inf, 0.0
        for count in sorted(counts):  # fine chunks last: they cost time, and steps in the file
            if best < inf and incumbent.seconds_left <= 2 * spent:
                return
            began = time.monotonic()
            for schedule in routing.schedules(stage.demand(count), settings.seed):
                if schedule.finish_us < best * (1 - INDIFFERENCE / 10):
                    best = schedule.finish_us
                    incumbent.offer(i, schedule)
                if incumbent.closed() or incumbent.seconds_left <= 0:
                    return
            if incumbent.closed(ENOUGH):
                return
            spent = time.monotonic() - began


@dataclass(frozen=True)
class FlowRouting:
    """Routes for bytes `wanted` between the ranks of `topology`, found in about so many `seconds`."""

    topology: Topology
    wanted: Wanted
    seconds: float = inf

    @cached_property
    def flow(self) -> ConcurrentFlow | None:
        """The maximum concurrent flow; None where nothing is wanted or the linear program is too large."""
        if not self.wanted or not self.small:
            return None
        return concurrent_flow(self.topology, self.wanted, short_ways=True, seconds=self.seconds, part=self.part)

    @cached_property
    def part(self) -> EvenPart:
        """What stands for the whole machine."""
        return EvenPart.of(self.topology, self.wanted)

    @cached_property
    def small(self) -> bool:
        """Whether the linear program, and playing what comes of it, is worth its time."""
        return len(self.wanted) <= MOST_PAIRS and flow_columns(self.topology, self.wanted, self.part) <= MAX_COLUMNS

    def schedules(self, demand: Demand, seed: int) -> Iterator[Schedule]:
        """Schedules of `demand`: on the flow's routes and on the quickest ones, in several orders. Deterministic for a
        seed. Each is O(sends · log sends) in C++, the rounding O(chunks · routes · path length)."""
        sizes = [chunk.bytes for chunk in demand.chunks]
        chunks = _chunks_by_pair(demand)
        for shares in self._shares(demand):
            if self.part.count > 1 and len(set(sizes)) == 1:
                yield from self._played(demand, self._rounded_evenly(shares, chunks, sizes), seed)
            if len(demand.chunks) <= MOST_CHUNKS_APART or self.part.count == 1:
                yield from self._played(demand, round_to_chunks(self._costs, shares, chunks, sizes), seed)

    def _rounded_evenly(
        self, shares: Mapping[Pair, Mapping[Route, float]], chunks: Mapping[Pair, Sequence[int]], sizes: Sequence[float]
    ) -> dict[int, Route]:
        """The chunks of one part on their routes, and everybody else's on these, moved round: so every link of an orbit
        is as busy as the others."""
        part = self.part
        costs: list[dict[int, float]] = []
        for links in self._costs:
            costs.append(defaultdict(float))
            for id, cost in links.items():
                costs[-1][part.orbit[id]] += cost * part.load(id)
        own = {pair: several for pair, several in chunks.items() if pair[0] in part.ranks}
        chosen = round_to_chunks(costs, shares, own, sizes)
        everybody: dict[int, Route] = {}
        for (source, target), several in own.items():
            for n, chunk in enumerate(several):
                for move, route in zip(part.moves, self._lifted(chosen[chunk]), strict=True):
                    everybody[chunks[move[source], move[target]][n]] = route
        return everybody

    # -- routes --------------------------------------------------------------------------------------------

    def _shares(self, demand: Demand) -> Iterator[Mapping[Pair, Mapping[Route, float]]]:
        quickest = self._quickest(demand)
        if self.flow is not None:
            by_flow = self._decomposed(self.flow)
            yield self._everybodys({pair: by_flow.get(pair) or {quickest[pair][0]: 1.0} for pair in self._own})
        yield self._everybodys(
            {pair: {route: 1 / len(quickest[pair]) for route in quickest[pair]} for pair in self._own}
        )

    @cached_property
    def _own(self) -> list[Pair]:
        """The pairs whose source stands for others."""
        return [pair for pair in sorted(self.wanted) if pair[0] in self.part.ranks]

    def _everybodys(self, shares: Mapping[Pair, Mapping[Route, float]]) -> dict[Pair, dict[Route, float]]:
        """The shares of routes of one part's pairs, moved round."""
        every: dict[Pair, dict[Route, float]] = defaultdict(lambda: defaultdict(float))
        for (source, target), routes in shares.items():
            for route, share in routes.items():
                for move, moved in zip(self.part.moves, self._lifted(route), strict=True):
                    every[move[source], move[target]][moved] += share
        return every

    def _lifted(self, route: Route) -> list[Route]:
        """The route as every part goes it."""
        if route not in self._moved:
            way = [id for path in route for id in self._paths[path].links]
            self._moved[route] = [self._direct(moved) for moved in self.part.lifted(way)]
        return self._moved[route]

    @cached_property
    def _moved(self) -> dict[Route, list[Route]]:
        return {}

    @cached_property
    def _paths(self) -> tuple[Path, ...]:
        return direct_paths(self.topology)

    @cached_property
    def _costs(self) -> list[dict[int, float]]:
        """Per direct path how long a byte takes each of its links, in µs."""
        links = self.topology.link_by_id
        return [{id: 1e-3 / links[id].bandwidth_GBps for id in path.links} for path in self._paths]

    def _decomposed(self, flow: ConcurrentFlow) -> dict[tuple[int, int], dict[Route, float]]:
        """Every pair's flow as routes with their shares: from each source, path after path of least latency is
        stripped off until its targets have what they want."""
        by_source: dict[int, dict[int, float]] = defaultdict(dict)
        for (source, link), nbytes in flow.flow.items():
            by_source[source][link] = nbytes
        routes: dict[tuple[int, int], dict[Route, float]] = {}
        for source, target in self._own:
            nbytes = self.wanted[source, target]
            shares: dict[Route, float] = defaultdict(float)
            missing = nbytes
            while missing > _LEAST_SHARE * nbytes:
                way = self._least_latency(by_source[source], source, target, _LEAST_SHARE * nbytes)
                if not way:
                    break
                amount = min(missing, *(by_source[source][link] for link in way))
                for link in way:
                    by_source[source][link] -= amount
                missing -= amount
                route = self._direct(way)
                if route:
                    shares[route] += amount / nbytes
            total = sum(shares.values())
            routes[source, target] = {route: share / total for route, share in shares.items()}
        return routes

    def _least_latency(self, flow: Mapping[int, float], source: int, target: int, least: float) -> list[int]:
        """The links of a least-latency way on which there is flow; [] if there is none."""
        leaving: dict[int, list[int]] = defaultdict(list)
        for link, nbytes in flow.items():
            if nbytes > least:
                leaving[self.topology.link_by_id[link].src].append(link)
        start, end = self.topology.gpus[source], self.topology.gpus[target]
        came_by: dict[int, int] = {}
        done = set()
        queue: list[tuple[float, int, int, int | None]] = [(0.0, 0, start, None)]
        while queue:
            since, hops, node, by = heappop(queue)
            if node in done:
                continue
            done.add(node)
            if by is not None:
                came_by[node] = by
            if node == end:
                break
            for id in leaving[node]:
                out = self.topology.link_by_id[id]
                heappush(queue, (since + out.alpha_us, hops + 1, out.dst, id))
        way: list[int] = []
        node = end
        while node != start:
            if node not in came_by:
                return []
            way.append(came_by[node])
            node = self.topology.link_by_id[came_by[node]].src
        return way[::-1]

    def _direct(self, way: Sequence[int]) -> Route:
        """The way as direct paths: its own where they are some, else others between the same GPUs; () if none."""
        route = []
        segment: list[int] = []
        for id in way:
            segment.append(id)
            if self.topology.link_by_id[id].dst in self.topology.rank_of:
                ends = self.topology.link_by_id[segment[0]].src, self.topology.link_by_id[id].dst
                pair = self.topology.rank_of[ends[0]], self.topology.rank_of[ends[1]]
                usual = self._number.get(tuple(segment))
                if usual is None and not self._between[pair]:
                    return ()
                route.append(self._between[pair][0] if usual is None else usual)
                segment = []
        return tuple(route)

    @cached_property
    def _number(self) -> dict[tuple[int, ...], int]:
        return {path.links: i for i, path in enumerate(self._paths)}

    @cached_property
    def _between(self) -> dict[tuple[int, int], list[int]]:
        between: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, path in enumerate(self._paths):
            between[path.src_rank, path.dst_rank].append(i)
        return between

    def _quickest(self, demand: Demand) -> dict[tuple[int, int], list[Route]]:
        """Up to `MAX_ROUTES` routes per pair on which a chunk, stored and forwarded, arrives soonest."""
        nbytes = max((chunk.bytes for chunk in demand.chunks), default=0.0)
        duration = [path.alpha_us + nbytes / (path.bandwidth_GBps * 1e3) for path in self._paths]
        leaving: dict[int, list[int]] = defaultdict(list)
        for i, path in enumerate(self._paths):
            leaving[path.src_rank].append(i)
        routes: dict[tuple[int, int], list[Route]] = {}
        for source in sorted({source for source, _ in self._own}):
            reached = self._tied_routes(source, duration, leaving)
            routes.update({(source, target): reached[target] for s, target in self._own if s == source})
        return routes

    def _tied_routes(
        self, source: int, duration: Sequence[float], leaving: Mapping[int, list[int]]
    ) -> dict[int, list[Route]]:
        paths = self._paths
        best = {source: 0.0}
        routes: dict[int, list[Route]] = {source: [()]}
        queue = [(0.0, source)]
        done = set()
        while queue:
            since, rank = heappop(queue)
            if rank in done:
                continue
            done.add(rank)
            for i in leaving[rank]:
                target, arrival = paths[i].dst_rank, since + duration[i]
                known = best.get(target, inf)
                if arrival < known * (1 - 1e-9):
                    best[target] = arrival
                    routes[target] = []
                    heappush(queue, (arrival, target))
                if arrival <= known * (1 + 1e-9) and target not in done:
                    routes[target] = (routes[target] + [(*way, i) for way in routes[rank]])[:MAX_ROUTES]
        return routes

    # -- the schedule ----------------------------------------------------------------------------------------

    def _played(self, demand: Demand, chosen: Mapping[int, Route], seed: int) -> Iterator[Schedule]:
        """The chunks on their routes, played by the event simulation: in turns, where links in series are busiest;
        else whatever has the longest way still to go is sent first."""
        paths = self._paths
        used = sorted({i for route in chosen.values() for i in route})
        position = {i: k for k, i in enumerate(used)}
        network = core_network(self.topology, [paths[i].links for i in used])
        wanted = core_demand(demand)
        hops = [(chunk, n, i) for chunk, route in sorted(chosen.items()) for n, i in enumerate(route)]

        def schedule(played: Any) -> Schedule:
            chunks, ways, starts, arrivals = played
            sends = zip(chunks.tolist(), ways.tolist(), starts.tolist(), strict=True)
            found = tuple(Send(chunk, paths[used[way]].links, start) for chunk, way, start in sends)
            return Schedule(self.topology, demand, found, float(arrivals.max(initial=0.0)))

        turns = self._turns(demand, chosen)
        if turns:

            def due(hop: tuple[int, int, int]) -> tuple[int, tuple[int, int, int]]:
                turn, main = turns.get(hop[0], (0, 0))
                return (turn + hop[1] - main if hop[1] >= main else -1), (turn, *hop[1:])

            ordered = sorted(hops, key=due)
            yield schedule(
                _core.retime(network, wanted, [chunk for chunk, _, _ in ordered], [position[i] for _, _, i in ordered])
            )
        left = self._left(demand, chosen)
        longest = max(left.values(), default=0.0)
        for n, noise in enumerate(NOISES):
            draw = random.Random(f"{seed} {n}").random
            priority = [left[chunk, n] + noise * longest * draw() for chunk, n, _ in hops]
            yield schedule(
                _core.dispatch(
                    network, wanted, [chunk for chunk, _, _ in hops], [position[i] for _, _, i in hops], priority
                )
            )
            if n == 0:
                yield self._backwards(demand, hops)

    def _backwards(self, demand: Demand, hops: Sequence[tuple[int, int, int]]) -> Schedule:
        """The same run backwards in time on the reversed machine, what has come farthest first: where chunks part
        (a scatter) rather than meet (a gather), this knows at the start what the end needs."""
        paths = self._paths
        used = sorted({i for _, _, i in hops})
        position = {i: k for k, i in enumerate(used)}
        turned = [replace(chunk, origin=chunk.want, want=chunk.origin) for chunk in demand.chunks]
        network = core_network(self.topology.reversed(), [paths[i].links[::-1] for i in used])
        come: dict[int, float] = defaultdict(float)  # chunk → how long its hops so far take
        priority = []
        for chunk, _, i in hops:
            come[chunk] += paths[i].alpha_us + demand.chunks[chunk].bytes / (paths[i].bandwidth_GBps * 1e3)
            priority.append(come[chunk])
        wanted = _core.Demanded(chunks=[(chunk.bytes, False, list(chunk.origin), list(chunk.want)) for chunk in turned])
        chunks, ways, _, arrivals = _core.dispatch(
            network, wanted, [chunk for chunk, _, _ in hops], [position[i] for _, _, i in hops], priority
        )
        finish = float(arrivals.max(initial=0.0))
        sends = [
            Send(chunk, paths[used[way]].links, finish - arrival)
            for chunk, way, arrival in zip(chunks.tolist(), ways.tolist(), arrivals.tolist(), strict=True)
        ]
        sends.reverse()
        return Schedule(self.topology, demand, tuple(sorted(sends, key=lambda send: send.start_us)), finish).retimed()

    def _left(self, demand: Demand, chosen: Mapping[int, Route]) -> dict[tuple[int, int], float]:
        """How long every (chunk, hop) and those after it take."""
        paths = self._paths
        left: dict[tuple[int, int], float] = {}
        for chunk, route in chosen.items():
            tail, nbytes = 0.0, demand.chunks[chunk].bytes
            for n in reversed(range(len(route))):
                tail += paths[route[n]].alpha_us + nbytes / (paths[route[n]].bandwidth_GBps * 1e3)
                left[chunk, n] = tail
        return left

    def _turns(self, demand: Demand, chosen: Mapping[int, Route]) -> dict[int, tuple[int, int]]:
        """Per chunk its turn on the busiest links and the hop that takes them; {} unless paths take several in series.

        Whoever takes an uplink and a downlink at once keeps others off both, so first come, first served leaves gaps
        between them; in the turns of an edge colouring all busiest links are taken all the time.
        """
        load: dict[int, float] = defaultdict(float)
        for chunk, route in chosen.items():
            for i in route:
                for link, cost in self._costs[i].items():
                    load[link] += cost * demand.chunks[chunk].bytes
        busiest = max(load.values(), default=0.0)
        edges, places = [], []
        for chunk, route in sorted(chosen.items()):
            for n, i in enumerate(route):
                busy = [link for link in self._paths[i].links if load[link] > BUSY * busiest]
                if len(busy) > 1:
                    edges.append((busy[0], busy[-1]))
                    places.append((chunk, n))
                    break
        return {chunk: (turn, n) for (chunk, n), turn in zip(places, edge_colours(edges), strict=True)}


def _chunks_by_pair(demand: Demand) -> dict[tuple[int, int], list[int]]:
    """The chunks that have somewhere to go, by where from and where to."""
    chunks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for chunk in demand.chunks:
        for target in chunk.want:
            if target not in chunk.origin and chunk.bytes > 0:
                chunks[chunk.origin[0], target].append(chunk.id)
    return chunks
