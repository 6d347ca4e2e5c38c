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
#: The share of the time that is left in which schedules of fewer chunks are found for files, and their largest chunk:
#: with larger ones a runtime loops over the program many times.
COARSER_SHARE = 0.15
LARGEST_CHUNK = 8e6
#: How many times the least latency the bound is for sizes at which many chunks are tried first.
LARGE = 100.0
#: The gap at which other parts are not tried.
ENOUGH = 2e-3
#: Ways between GPUs beyond which a trial takes seconds, and is only worth it for a larger gap than this.
MANY_WAYS = 20_000
GOOD = 0.05


def search_symmetrically(incumbent: Incumbent, settings: Settings) -> None:
    """Every stage of a problem that is symmetric, over the chunk counts. At large sizes also where others have found
    what is fast enough: what is the same for every GPU keeps its time as a program, too."""
    incumbent.phase = "symmetry"
    if not incumbent.problem.named or incumbent.problem.collective not in COLLECTIVES:
        return
    large = _large(incumbent)
    for i, stage in enumerate(incumbent.stages):
        if incumbent.best is not None and incumbent.seconds_left <= 0:
            return
        if _done(incumbent, i) and not large:
            continue
        for number, search in enumerate(SymmetricSearch.all_of(stage.topology)):
            last = _done(incumbent, i)
            if (last and number > 0) or search.cost(stage.demand(1)) > SHARE / 4 * 1e6 * incumbent.seconds_left:
                break
            if search.nways > MANY_WAYS and incumbent.closed(GOOD):
                break
            incumbent.tell()
            search_stage(incumbent, i, search, settings, EFFORT, SHARE, finest_first=large)
            if large and settings.nchunks is None:
                _coarsen(incumbent, i, search, settings)
            if not last:
                tournament(_stage_field(incumbent, i, search, settings), settings)
    few = incumbent.problem.topology.nranks <= MOST_GPUS
    if len(incumbent.stages) > 1 and few and incumbent.seconds_left > 0 and not incumbent.closed(ENOUGH):
        whole = SymmetricSearch.of(incumbent.problem.topology)
        if whole is not None and whole.nways <= MANY_WAYS:
            tournament(_whole_field(incumbent, whole, settings), settings)


def _done(incumbent: Incumbent, i: int) -> bool:
    return incumbent.closed(ENOUGH) or incumbent.stage_closed(i)


def _coarsen(incumbent: Incumbent, i: int, search: SymmetricSearch, settings: Settings) -> None:
    """Stage `i` with a half, a quarter, … of the chunks, unless they are too large, the fewest first, which take least:
    files hold but so many steps, and those in which sends wait for their turn are among them."""
    stage, counts = incumbent.stages[i], [max(incumbent.parts[i], default=0) // 2]
    while counts[-1]:
        counts.append(counts[-1] // 2)
    finish_by = time.monotonic() + COARSER_SHARE * incumbent.seconds_left / (len(incumbent.stages) - i)
    for demand in map(stage.demand, counts[-2::-1]):
        if max(chunk.bytes for chunk in demand.chunks) <= LARGEST_CHUNK and time.monotonic() < finish_by:
            for schedule in search.trials(demand, range(settings.seed, settings.seed + 1), 1, lambda seed: inf):
                incumbent.offer(i, schedule)


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
