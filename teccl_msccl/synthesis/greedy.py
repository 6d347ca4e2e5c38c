"""Greedy search over the time-expanded network, many seeds over many chunk counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from .. import _core
from ..collective.demand import Demand
from ..errors import Refused
from ..schedule.schedule import Schedule, Send
from ..schedule.simulate import core_demand, core_network
from ..topology.model import Topology
from ..topology.paths import direct_paths

#: Share of the gain by which random draws may reorder near ties; the seeds take turns.
NOISES = (0.0, 0.05, 0.2, 0.5)


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

    def trial(self, demand: Demand, seed: int) -> Schedule:
        """One run: whenever a link falls free, start the send that most shortens what is missing.

        Copies only. Deterministic for a seed. Roughly O(sends · paths per GPU · chunks) in C++.
        """
        return next(self.trials(demand, range(seed, seed + 1), jobs=1))

    def trials(self, demand: Demand, seeds: range, jobs: int = 2) -> Iterator[Schedule]:
        """One schedule per seed, in the order of the seeds, `jobs` at a time."""
        paths = [path.links for path in direct_paths(self.topology)]
        network, wanted = core_network(self.topology, paths), core_demand(demand)

        def run(seed: int) -> Schedule:
            try:
                chunks, ways, starts, arrivals = _core.greedy(network, wanted, seed, NOISES[seed % len(NOISES)])
            except ValueError as error:
                raise Refused(f"{self.topology.name}: {error}") from None
            sends = tuple(
                Send(chunk, paths[way], start)
                for chunk, way, start in zip(chunks.tolist(), ways.tolist(), starts.tolist(), strict=True)
            )
            return Schedule(self.topology, demand, sends, float(arrivals.max(initial=0.0)))

        with ThreadPoolExecutor(jobs) as pool:
            for batch in batched(seeds, 2 * jobs):  # small batches: a caller that has enough waits for no more
                yield from list(pool.map(run, batch))


@dataclass
class ChunkCandidate:
    """A chunk count on trial, and the best schedule found for it."""

    demand: Demand
    best: Schedule | None = None
    tried: int = 0

    @property
    def finish_us(self) -> float:
        return self.best.finish_us if self.best is not None else float("inf")


def search_chunk_counts(
    topology: Topology,
    demands: list[Demand],
    *,
    seed: int,
    jobs: int,
    effort: float,
    improved: Callable[[Schedule], None],
    done: Callable[[], bool],
) -> None:
    """Successive halving over the chunk counts of `demands`: those that do well get twice the trials.

    Calls `improved` with every better schedule and stops when `done` says so. `effort` scales the number of
    trials, so that the same seed tries the same things however fast the machine is.
    """
    search = GreedySearch(topology)
    candidates = [ChunkCandidate(demand) for demand in demands]
    share = effort
    while candidates and not done():
        for candidate in candidates:
            trials = max(1, min(2000, int(share / _cost(topology, candidate.demand))))
            seeds = range(seed + candidate.tried, seed + candidate.tried + trials)
            candidate.tried += trials
            for schedule in search.trials(candidate.demand, seeds, jobs):
                if schedule.finish_us < candidate.finish_us * (1 - 1e-12):
                    candidate.best = schedule
                    improved(schedule)
                if done():
                    return
        if len(candidates) == 1:
            return
        candidates = sorted(candidates, key=lambda c: (c.finish_us, c.demand.nchunks))[: (len(candidates) + 1) // 2]
        share *= 2


def _cost(topology: Topology, demand: Demand) -> float:
    """A trial's work, in about microseconds: a fixed part, and sends that are dearer with paths and chunks to weigh."""
    sends = sum(len(chunk.want) for chunk in demand.chunks)
    return 300 + sends * (1 + 0.015 * len(direct_paths(topology)) + 0.015 * len(demand.chunks))
