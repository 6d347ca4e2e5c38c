"""Greedy search over the time-expanded network, many seeds over many chunk counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, log2
from typing import Protocol, TypeVar

from .. import _core
from ..collective.demand import ROOTED, Demand
from ..errors import Refused
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import core_demand, core_network
from ..topology.model import Topology
from ..topology.paths import direct_paths
from .incumbent import Incumbent
from .problem import Problem
from .settings import Settings

#: Work per round of the search over chunk counts, in about microseconds of one core; and where it is all there is.
EFFORT = 1.0e5
THOROUGH_EFFORT = 1.0e6
#: A trial's cost beyond which, and the share of the time after which, the rest is left to other searchers.
DEAREST_TRIAL = 8.0e5
SHARE = 0.2
#: Sizes of chunks beyond which similar ones are searched as one (an alltoallv's are all different).
MANY_SIZES = 32
#: Share of the gain by which random draws may reorder near ties; the seeds take turns.
NOISES = (0.0, 0.05, 0.2, 0.5)
#: How far between the lower bound and the best finish so far a trial's deadline lies; the seeds take turns.
DEADLINES = (inf, 0.5, 0.2, 0.75, 0.35, 0.0, 0.9)


#: How long a unit of a trial's cost takes until it has been measured.
_SECONDS_PER_UNIT = 2e-6

_T = TypeVar("_T")


def batched(items: Iterable[_T], size: int) -> Iterator[tuple[_T, ...]]:
    """Tuples of up to `size` items (itertools.batched, which Python 3.11 lacks)."""
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


@dataclass(frozen=True)
class GreedySearch:
    """The greedy search on one topology. `paths` are those between GPUs, in the core's order."""

    topology: Topology

    def cost(self, demand: Demand) -> float:
        """A trial's work, in about microseconds: a fixed part, and sends that are dearer with paths and chunks to
        weigh."""
        sends = sum(len(chunk.want) for chunk in demand.chunks)
        return 300 + sends * (1 + 0.003 * len(direct_paths(self.topology)) + 0.008 * len(demand.chunks))

    def trial(self, demand: Demand, seed: int, deadline_us: float = inf) -> Schedule:
        """One run: whenever a link falls free, start the send that most shortens what is missing.

        No send that would arrive after `deadline_us` starts while any other can. Copies only. Deterministic for a
        seed. Roughly O(sends · paths per GPU · chunks) in C++.
        """
        return next(self.trials(demand, range(seed, seed + 1), 1, lambda seed: deadline_us))

    def trials(
        self, demand: Demand, seeds: range, jobs: int = 2, deadline_us: Callable[[int], float] = lambda seed: inf
    ) -> Iterator[Schedule]:
        """One schedule per seed, in the order of the seeds, `jobs` at a time; `deadline_us` gives each its deadline."""
        paths = [path.links for path in direct_paths(self.topology)]
        searched = in_few_sizes(demand)
        network, wanted = core_network(self.topology, paths), core_demand(searched)

        def run(seed: int, deadline: float) -> Schedule:
            noise = NOISES[seed % len(NOISES)]
            try:
                chunks, ways, starts, arrivals = _core.greedy(network, wanted, seed, noise, deadline)
            except ValueError as error:
                raise Refused(f"{self.topology.name}: {error}") from None
            sends = tuple(
                Send(chunk, paths[way], start)
                for chunk, way, start in zip(chunks.tolist(), ways.tolist(), starts.tolist(), strict=True)
            )
            schedule = Schedule(self.topology, demand, sends, float(arrivals.max(initial=0.0)))
            return schedule if searched is demand else schedule.retimed()

        with ThreadPoolExecutor(jobs) as pool:
            for batch in batched(seeds, jobs):  # small batches: a caller that has enough waits for no more
                yield from list(pool.map(run, batch, [deadline_us(seed) for seed in batch]))


def in_few_sizes(demand: Demand) -> Demand:
    """The demand as the search sees it, which works out every path anew for each size: of more than `MANY_SIZES`,
    those within an eighth of an octave are one."""
    if len({chunk.bytes for chunk in demand.chunks}) <= MANY_SIZES:
        return demand
    chunks = (replace(c, bytes=2 ** (round(8 * log2(c.bytes)) / 8) if c.bytes > 0 else 0.0) for c in demand.chunks)
    return replace(demand, chunks=tuple(chunks))


@dataclass
class ChunkCandidate:
    """A chunk count on trial, and the best schedule found for it."""

    demand: Demand
    floor_us: float
    best: Schedule | None = None
    tried: int = 0

    @property
    def finish_us(self) -> float:
        return self.best.finish_us if self.best is not None else inf

    def deadline_us(self, seed: int) -> float:
        """Between the floor and the best finish so far: what is aimed at is often reached, and lowers the next."""
        share = DEADLINES[seed % len(DEADLINES)]
        return inf if self.best is None or share == inf else self.floor_us + share * (self.finish_us - self.floor_us)


def greedy_seconds(problem: Problem) -> float:
    """About how long one trial for each stage takes: too long for collectives of all among hundreds of GPUs."""
    n = problem.topology.nranks
    chunks = 1 if problem.collective in ("broadcast", "reduce") else n
    sends = n if problem.collective in ROOTED else n * n
    if problem.collective in ("alltoall", "alltoallv"):
        chunks = sends
    return len(problem.stages) * 1e-6 * sends * (0.02 * n * n + 0.01 * chunks)


class Search(Protocol):
    """What tries to schedule a demand, by seeds."""

    def cost(self, demand: Demand) -> float:
        """A trial's work, in about microseconds of one core."""

    def trials(
        self, demand: Demand, seeds: range, jobs: int, deadline_us: Callable[[int], float]
    ) -> Iterator[Schedule]:
        """Schedules, at most one per seed."""


def search_greedily(incumbent: Incumbent, settings: Settings) -> None:
    """Every stage over the chunk counts; at least one schedule whatever the time limit. Unless the settings are
    thorough, chunk counts that take long are left to others."""
    incumbent.phase = "greedy"
    incumbent.tell()
    for i, stage in enumerate(incumbent.stages):
        search = GreedySearch(stage.topology)
        if settings.thorough:
            search_stage(incumbent, i, search, settings, THOROUGH_EFFORT)
        else:
            search_stage(incumbent, i, search, settings, EFFORT, SHARE, DEAREST_TRIAL)


def search_stage(
    incumbent: Incumbent,
    i: int,
    search: Search,
    settings: Settings,
    effort: float,
    share: float = 1.0,
    dearest: float = inf,
    finest_first: bool = False,
) -> None:
    """Offer what `search` finds for stage `i` over the chunk counts, for the stage's part of a `share` of the time
    that is left; those with trials that cost more than `dearest` are left out, but for the cheapest. It begins with
    few chunks, or with many."""
    stage = incumbent.stages[i]
    counts = (settings.nchunks,) if settings.nchunks is not None else incumbent.problem.chunk_counts()
    finish_by = time.monotonic() + share * incumbent.seconds_left / (len(incumbent.stages) - i)
    demands = sorted((stage.demand(c) for c in counts), key=search.cost)
    tried = [demand for demand in demands if demand is demands[0] or search.cost(demand) <= dearest]
    search_chunk_counts(
        search,
        tried[::-1] if finest_first else tried,
        floor_us=incumbent.floor_us(i),
        seed=settings.seed,
        jobs=settings.jobs,
        effort=effort / len(counts),
        improved=lambda part: incumbent.offer(i, part),
        done=lambda: bool(incumbent.parts[i]) and (incumbent.stage_closed(i) or time.monotonic() >= finish_by),
        seconds_left=lambda: finish_by - time.monotonic() if incumbent.parts[i] else inf,
    )


def search_chunk_counts(
    search: Search,
    demands: list[Demand],
    *,
    floor_us: float,
    seed: int,
    jobs: int,
    effort: float,
    improved: Callable[[Schedule], None],
    done: Callable[[], bool],
    seconds_left: Callable[[], float] = lambda: inf,
) -> None:
    """Successive halving over the chunk counts of `demands`: those that do well get twice the trials.

    Deadlines aim between `floor_us`, a lower bound, and the best of a chunk count. Calls `improved` with every better
    schedule and stops when `done` says so; a trial that would take longer than `seconds_left` does not begin. `effort`
    scales the number of trials, so that the same seed tries the same things however fast the machine is.
    """
    candidates = [ChunkCandidate(demand, floor_us) for demand in demands]
    share, pace = effort, _SECONDS_PER_UNIT
    while candidates and not done():
        for candidate in candidates:
            if pace * search.cost(candidate.demand) > seconds_left():
                continue
            began = time.monotonic()
            trials = max(1, min(2000, int(share / search.cost(candidate.demand))))
            seeds = range(seed + candidate.tried, seed + candidate.tried + trials)
            candidate.tried += trials
            for schedule in search.trials(candidate.demand, seeds, jobs, candidate.deadline_us):
                if schedule.finish_us < candidate.finish_us * (1 - 1e-12):
                    candidate.best = schedule
                    improved(schedule)
                if done():
                    return
            pace = (time.monotonic() - began) / (trials * search.cost(candidate.demand))
        if len(candidates) == 1:
            return
        candidates = sorted(candidates, key=lambda c: (c.finish_us, c.demand.nchunks))[: (len(candidates) + 1) // 2]
        share *= 2
