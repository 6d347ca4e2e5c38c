"""The searches for symmetric machines: one part's chunks, scheduled greedily, then along trees."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf

from ..collective.demand import Demand
from ..schedule.schedule import Schedule
from .greedy import search_stage
from .incumbent import Incumbent
from .routes import RouteSearch
from .settings import Settings
from .symmetric_routes import FreeRootsRouter, SymmetricRouter
from .symmetry import SymmetricSearch
from .trees import Field, tournament

#: Collectives that ask the same of every GPU.
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")
#: Work per round of the search over chunk counts, in about microseconds of one core.
EFFORT = 2.0e5
#: The part of the time that is left which this search may take.
SHARE = 0.25
TREES_SHARE = 0.6
#: GPUs of which an allreduce's chunks, which start and end at all of them, are too many to route as a whole.
MOST_GPUS = 32
#: How many times the least latency the bound is for sizes at which many chunks are tried first.
LARGE = 100.0
#: The gap at which other parts are not tried.
ENOUGH = 2e-3
#: Ways between GPUs beyond which a trial takes seconds, and is only worth it for a larger gap than this.
MANY_WAYS = 20_000
GOOD = 0.05


def search_symmetrically(incumbent: Incumbent, settings: Settings) -> None:
    """Every stage of a problem that is symmetric, over the chunk counts."""
    incumbent.phase = "symmetry"
    if not incumbent.problem.named or incumbent.problem.collective not in COLLECTIVES:
        return
    for i, stage in enumerate(incumbent.stages):
        if incumbent.best is not None and incumbent.seconds_left <= 0:
            return
        for search in SymmetricSearch.all_of(stage.topology):
            if (
                incumbent.closed(ENOUGH)
                or incumbent.stage_closed(i)
                or search.cost(stage.demand(1)) > SHARE / 4 * 1e6 * incumbent.seconds_left
            ):
                break
            if search.nways > MANY_WAYS and incumbent.closed(GOOD):
                break
            incumbent.tell()
            search_stage(incumbent, i, search, settings, EFFORT, SHARE, finest_first=_large(incumbent))
            tournament(_stage_field(incumbent, i, search, settings), settings)
    few = incumbent.problem.topology.nranks <= MOST_GPUS
    if len(incumbent.stages) > 1 and few and incumbent.seconds_left > 0 and not incumbent.closed(ENOUGH):
        whole = SymmetricSearch.of(incumbent.problem.topology)
        if whole is not None and whole.nways <= MANY_WAYS:
            tournament(_whole_field(incumbent, whole, settings), settings)


def _large(incumbent: Incumbent) -> bool:
    """Whether latencies hardly count, so that the finer the chunks, the better."""
    alpha_us = max((bound.bound_us for bound in incumbent.bounds if bound.term == "alpha"), default=inf)
    return incumbent.bound_us >= LARGE * alpha_us


def _stage_field(incumbent: Incumbent, i: int, search: SymmetricSearch, settings: Settings) -> Field:
    """Trees for part 0's chunks of stage `i`, in the stage's part of a share of the time that is left."""
    stage = incumbent.stages[i]
    return _field(
        incumbent,
        settings,
        stage.demand,
        lambda demand: SymmetricRouter(stage.topology, demand, search),
        incumbent.parts[i],
        incumbent.floor_us(i),
        lambda part: incumbent.offer(i, part),
        TREES_SHARE / (len(incumbent.stages) - i),
    )


def _whole_field(incumbent: Incumbent, search: SymmetricSearch, settings: Settings) -> Field:
    """An allreduce's trees with free roots."""
    problem = incumbent.problem
    return _field(
        incumbent,
        settings,
        problem.demand,
        lambda demand: FreeRootsRouter(problem.topology, demand, search.quotient),
        {nchunks: schedule for nchunks, (_, schedule) in incumbent.whole.items()},
        incumbent.bound_us,
        incumbent.offer_whole,
        TREES_SHARE,
    )


def _field(
    incumbent: Incumbent,
    settings: Settings,
    demand: Callable[[int], Demand],
    router: Callable[[Demand], RouteSearch],
    known: Mapping[int, Schedule],
    floor_us: float,
    improved: Callable[[Schedule], None],
    share: float,
) -> Field:
    counts = (settings.nchunks,) if settings.nchunks is not None else incumbent.problem.chunk_counts()
    finish_by = time.monotonic() + share * incumbent.seconds_left
    return Field(
        tuple(demand(c) for c in counts),
        router,
        known,
        floor_us,
        improved,
        lambda: incumbent.best is not None and (incumbent.closed() or time.monotonic() >= finish_by),
        lambda: finish_by - time.monotonic() if incumbent.best is not None else inf,
    )
