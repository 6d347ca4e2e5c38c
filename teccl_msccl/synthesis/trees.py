"""Trees packed for throughput, played in time and improved by ruin and recreate, over chunk counts and depths."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf, isfinite, log

import numpy as np

from ..collective.demand import Demand
from ..errors import Refused
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from .incumbent import CLOSED, Incumbent
from .routes import Router, Routes, RouteSearch
from .settings import Settings

#: What a tree's depth counts against the load of its links; deep trees have the throughput, shallow ones the latency.
DEPTH_WEIGHTS = (0.001, 0.01, 0.1, 1.0, 10.0)
FEW_DEPTH_WEIGHTS = (0.001, 0.1)
#: Kinds of trees that are packed for other chunk counts than the coarsest, for which all are.
KINDS = 5
#: Times that every tree is grown anew while they are packed.
PACKING_ROUNDS = 16
#: Chunk counts for which trees are packed: the best so far and, of those that do about as well, the larger.
MOST_PACKED = 4
ALIKE = 0.05
#: A contender's work in the first round of the tournament, in about 0.15 µs of one core; each round doubles it.
EFFORT = 1.0e5
MOST_EFFORT = 32 * EFFORT
#: Of the time that is left, where other searchers wait for their turn.
SHARE = 0.6
#: Contenders that enter the tournament.
MOST_CONTENDERS = 16
#: Rounds without gain after which the last contender stops.
PATIENCE = 4
#: How far between the lower bound and the finish a chunk may arrive and not be late; the rounds take turns.
TARGETS = (0.9, 0.7, 0.97, 0.5)
#: Where the longest way goes first: how far apart the chunks of one origin begin, as a share of the bound, and how much
#: links count that have much to carry yet. What is copied need not wait; what is gathered and spread does both at once.
PLAYS = ((0.0, 0.0), (0.0, 1.0), (0.0, 1000.0), (0.18, 0.0), (0.25, 0.0), (0.25, 1000.0))
#: By what share of its time a send may go out of turn there.
NOISE = 0.5
#: Of the plays of one packing, those that are justified.
JUSTIFIED = 3
#: So many packings that did best, and better than what was known, are packed again with other seeds, until so many of
#: these in a row are in vain or that share of the time is over.
REPACKED = 4
REPACKED_IN_VAIN = 12
REPACKING_SHARE = 0.15
#: Gains below this share are none, and a contender this much worse than the incumbent for its chunk count not told.
NO_GAIN = 1e-9
#: Seconds that a unit of work took on a slow machine: for what would not end in time, until it has been measured.
SECONDS_PER_UNIT = 5e-8


@dataclass(frozen=True)
class Field:
    """A demand to be met, split in several ways, where to route each, schedules `known` by nchunks, whom to tell of
    better ones, when to stop. As long as there is no schedule at all, no time is short: `seconds_left` is infinite."""

    demands: tuple[Demand, ...]
    router: Callable[[Demand], RouteSearch]
    known: Mapping[int, Schedule]
    floor_us: float
    improved: Callable[[Schedule], None]
    done: Callable[[], bool]
    seconds_left: Callable[[], float]


@dataclass(frozen=True)
class Kind:
    """How trees are packed: what depth counts, how far from the shortest paths may be (see `RouteSearch.within`) and
    what is left of links that only long ones cross."""

    depth_weight: float
    detour: int | None = None
    eased: float = 1.0


def _kinds(router: RouteSearch) -> list[Kind]:
    """All depths on the narrowest network, a few where links have time to spare and paths may be longer; the most
    different first."""
    narrowest = router.detours[0]
    return [
        Kind(depth, detour, eased)
        for depth in sorted(DEPTH_WEIGHTS, key=lambda depth: depth not in FEW_DEPTH_WEIGHTS)
        for detour in router.detours
        for eased in router.within(detour).easings
        if (detour == narrowest and eased == 1) or (depth in FEW_DEPTH_WEIGHTS and eased < 1)
    ]


#: Trees in time, and where and how they were packed.
Planted = tuple[Routes, RouteSearch, Kind]


@dataclass
class Contender:
    """Routes on their way to better ones."""

    router: RouteSearch
    routes: Routes
    seed: int
    rounds: int = 0
    idle: int = 0

    @property
    def finish_us(self) -> float:
        return self.routes.finish_us

    def improve(self, floor_us: float, effort: float) -> None:
        """A round of ruin and recreate, then of justification. Deterministic for the seed."""
        before = self.finish_us
        share = TARGETS[self.rounds % len(TARGETS)]
        seed = self.seed + self.rounds
        moves = max(20, int(effort / self.units_per_move))
        routes = self.router.rerouted(self.routes, floor_us + share * (before - floor_us), moves, seed)
        routes = self.router.justified(routes, rounds=1, noise=0.02, seed=seed)
        if routes.finish_us <= before:
            self.routes = routes
        self.rounds += 1
        self.idle = 0 if self.finish_us < before * (1 - NO_GAIN) else self.idle + 1

    @property
    def units_per_move(self) -> float:
        """Two or three chunks are put back on their hops or, as often, grown over all paths."""
        hops = len(self.routes.chunk) / max(1, len(self.router.turns))
        return 2.5 * (hops + 0.5 * len(self.router.paths))


def search_trees(incumbent: Incumbent, settings: Settings) -> None:
    """Every stage, or an allreduce as a whole with the trees' roots free, until nothing gains or the time is up."""
    incumbent.phase = "trees"
    incumbent.tell()
    for field in _fields(incumbent, settings):
        if not field.done():
            tournament(field, settings)


def _fields(incumbent: Incumbent, settings: Settings) -> Iterator[Field]:
    problem = incumbent.problem
    counts = (settings.nchunks,) if settings.nchunks is not None else problem.chunk_counts()

    finish_by = time.monotonic() + (1.0 if settings.thorough else SHARE) * incumbent.seconds_left

    def done() -> bool:
        return incumbent.best is not None and (incumbent.closed() or time.monotonic() >= finish_by)

    def seconds_left() -> float:
        return finish_by - time.monotonic() if incumbent.best is not None else inf

    if problem.named and len(incumbent.stages) > 1:
        whole = {nchunks: schedule for nchunks, (_, schedule) in incumbent.whole.items()}
        yield Field(
            tuple(problem.demand(c) for c in counts),
            partial(_router, problem.topology, whole),
            whole,
            incumbent.bound_us,
            incumbent.offer_whole,
            done,
            seconds_left,
        )
        return
    for i, stage in enumerate(incumbent.stages):
        yield Field(
            tuple(stage.demand(c) for c in counts),
            partial(_router, stage.topology, incumbent.parts[i]),
            incumbent.parts[i],
            incumbent.floor_us(i),
            lambda part, i=i: incumbent.offer(i, part),  # type: ignore[misc]
            done,
            seconds_left,
        )


def _router(topology: Topology, known: Mapping[int, Schedule], demand: Demand) -> Router:
    schedule = known.get(demand.nchunks)
    return Router(topology, demand, () if schedule is None else {send.path for send in schedule.sends})


def tournament(field: Field, settings: Settings) -> None:
    """Successive halving: all contenders improve, the better half goes on with twice the effort, the last one until
    it gains no more."""
    told = {nchunks: schedule.finish_us for nchunks, schedule in field.known.items()}

    def tell(contender: Contender) -> None:
        count = contender.router.demand.nchunks
        if contender.finish_us < told.get(count, inf) * (1 - NO_GAIN):
            told[count] = contender.finish_us
            field.improved(contender.router.schedule(contender.routes))

    with ThreadPoolExecutor(settings.jobs) as pool:
        contenders = list(_contenders(field, settings, pool))
        for contender in contenders[:1]:
            tell(contender)
        effort = EFFORT
        round_s = 0.0  # a round takes about as long as the one before: half the contenders, twice the effort
        rounds = count() if settings.rounds is None else range(settings.rounds)
        for _ in rounds:
            if not contenders or field.done() or round_s > field.seconds_left():
                return
            began = time.monotonic()
            list(pool.map(lambda c: field.done() or c.improve(field.floor_us, effort), contenders))  # noqa: B023
            contenders.sort(key=lambda c: (c.finish_us, c.router.demand.nchunks))
            tell(contenders[0])
            round_s = time.monotonic() - began
            if contenders[0].finish_us <= field.floor_us * (1 + CLOSED):
                return
            if len(contenders) == 1 and contenders[0].idle >= PATIENCE:
                return
            contenders = contenders[: (len(contenders) + 1) // 2]
            effort = min(2 * effort, MOST_EFFORT)


def _contenders(field: Field, settings: Settings, pool: ThreadPoolExecutor) -> Iterable[Contender]:
    """What is known and what is packed, best first; packing stops where it would not end in time."""
    routers = {demand.nchunks: field.router(demand) for demand in field.demands}
    contenders: list[Contender] = []
    for nchunks, router in routers.items():
        known = field.known.get(nchunks)
        routes = None if known is None else router.routes(known)
        if routes is not None:
            contenders.append(Contender(router, routes, settings.seed))

    def planted(kinds: list[tuple[RouteSearch, Kind]], seed: int) -> Iterator[Planted]:
        """Trees of all kinds, and how they do."""
        routes = pool.map(lambda each: _planted(each[0], each[1], field.floor_us, seed), kinds)
        for each, (router, kind) in zip(routes, kinds, strict=True):
            contenders.append(Contender(router.within(kind.detour), each, settings.seed))
            yield each, router, kind

    pace = SECONDS_PER_UNIT
    packed: list[Planted] = []
    for demand in _coarsest_first(_promising(field)[:MOST_PACKED]):
        router = routers[demand.nchunks]
        kinds, units = _affordable(router, _best_kinds(packed) or _kinds(router), 0.3 * field.seconds_left() / pace)
        if not kinds or field.done():
            continue
        began = time.monotonic()
        packed += planted([(router, kind) for kind in kinds], settings.seed)
        pace = (time.monotonic() - began) / units
    packed.sort(key=lambda each: each[0].finish_us)
    leading = bool(packed) and packed[0][0].finish_us <= min(contender.finish_us for contender in contenders)
    best = [(router, kind) for _, router, kind in packed[:REPACKED]] if leading else []
    until = field.seconds_left() * (1 - REPACKING_SHARE)
    least_us, in_vain = min((contender.finish_us for contender in contenders), default=inf), 0
    for seed in count(settings.seed + 1) if best and settings.rounds is None and isfinite(until) else ():
        if field.seconds_left() <= until or least_us <= field.floor_us * (1 + CLOSED) or field.done():
            break
        found_us = min(routes.finish_us for routes, *_ in planted(best, seed))
        in_vain = 0 if found_us < least_us else in_vain + 1
        least_us = min(least_us, found_us)
        if in_vain == REPACKED_IN_VAIN:
            break
    contenders.sort(key=lambda c: (c.finish_us, c.router.demand.nchunks))
    return contenders[:MOST_CONTENDERS]


def _promising(field: Field) -> list[Demand]:
    """The demands, those whose split has done well so far first, and finer ones before coarser ones that did alike."""
    best = min((schedule.finish_us for schedule in field.known.values()), default=0.0)
    finest = max(field.known, default=0)

    def rank(demand: Demand) -> tuple[int, int]:
        known = field.known.get(demand.nchunks)
        if known is None or best <= 0:
            return (int(demand.nchunks < finest), -demand.nchunks)
        return (int(log(known.finish_us / best) / ALIKE), -demand.nchunks)

    return sorted(field.demands, key=rank)


def _coarsest_first(demands: list[Demand]) -> list[Demand]:
    """The one with the fewest chunks, which takes the least time, first; the others as they are."""
    first = min(demands, key=lambda demand: demand.nchunks)
    return [first, *(demand for demand in demands if demand is not first)]


def _affordable(router: RouteSearch, kinds: list[Kind], most: float) -> tuple[list[Kind], float]:
    """The first kinds that take so many units of work together, and how many these take."""
    chosen, total = [], 0.0
    for kind in kinds:
        paths = len(router.within(kind.detour).paths)
        units = PACKING_ROUNDS * len(router.turns) * (paths + router.topology.nranks**2)
        if total + units > most:
            break
        chosen.append(kind)
        total += units
    return chosen, total


def _best_kinds(packed: list[Planted]) -> list[Kind]:
    """Those that have done best so far."""
    best_first = sorted(packed, key=lambda each: each[0].finish_us)
    return list(dict.fromkeys(kind for *_, kind in best_first))[:KINDS]


def _planted(router: RouteSearch, kind: Kind, floor_us: float, seed: int) -> Routes:
    """Packed trees, played: all chunks at once, as late as the bound allows or in turns, and the longest way first,
    whichever is best."""
    router = router.within(kind.detour)
    try:
        trees, _ = router.packed(kind.depth_weight, PACKING_ROUNDS, 0.0, seed, kind.eased)
    except ValueError as error:
        raise Refused(f"{router.topology.name}: {error}") from None
    height = np.zeros(len(router.turns))
    np.maximum.at(height, trees.chunk, trees.arrival_us)
    spare = np.maximum(0.0, floor_us - height)
    delays = (np.zeros_like(height), spare, spare * router.turns)
    played = [router.justified(trees.delayed(delay), shared=True, rounds=-1) for delay in delays]
    for share, load_weight in PLAYS:
        staggered = trees.delayed(share * floor_us * router.turns)
        played.append(router.dispatched(staggered, load_weight=load_weight, noise=NOISE, seed=seed))
    played.sort(key=lambda routes: routes.finish_us)
    return min((router.justified(routes) for routes in played[:JUSTIFIED]), key=lambda routes: routes.finish_us)
