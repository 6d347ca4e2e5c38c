"""A baseline as a method: its schedule for a demand, and for a problem with the chunk count that suits it best."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType

from ...collective.demand import Demand
from ...errors import InputError
from ...schedule.schedule import Schedule
from ...topology.model import Topology
from ..budget import UNLIMITED, Budget
from ..halves import Owner, gathered, gathering, in_blocks, spreading
from ..incumbent import INDIFFERENCE, Incumbent
from ..mirror import chained, mirrored
from ..settings import Settings
from .bruck import BRUCK
from .direct import DIRECT
from .hierarchical import HIERARCHICAL
from .plan import Baseline, scheduled, teams_of
from .recursive_doubling import RECURSIVE_DOUBLING
from .ring import RING
from .tree import TREE

BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {baseline.name: baseline for baseline in (RING, TREE, RECURSIVE_DOUBLING, BRUCK, DIRECT, HIERARCHICAL)}
)
#: Other names of theirs.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "double-binary-tree": "tree",
        "dbt": "tree",
        "recursive-halving": "recursive-doubling",
        "halving-doubling": "recursive-doubling",
        "rhd": "recursive-doubling",
        "pat": "bruck",
        "p2p": "direct",
        "pxn": "hierarchical",
    }
)
#: Multiples of the fewest chunks that are tried, and how many in a row may bring next to nothing.
MULTIPLES = (1, 2, 3, 4, 8, 16, 32, 64)
PATIENCE = 2
#: How many times what others have found that a baseline may tend to, to be tried once more.
HOPELESS = 1.5
#: Sends and receives of a rank that a file can hold, with a margin; and the smallest chunk worth having, in bytes.
MOST_TRANSFERS = 3000
LEAST_BYTES = 16
#: Among other searches: in what order, so long, and that share of the time, for all of them, and what a chunk that some
#: GPU wants takes each at the least.
OFFERED = (RING, TREE, HIERARCHICAL, DIRECT, RECURSIVE_DOUBLING, BRUCK)
SECONDS_PER_WANT = 2e-4
OFFERED_S = 4.0
OFFERED_SHARE = 0.25


def baseline_schedule(topology: Topology, demand: Demand, baseline: Baseline) -> Schedule:
    """`baseline` for `demand` as it is split. Reductions are copies on the reversed topology, run backwards."""
    if not demand.reducing:
        return _copied(topology, demand, baseline)
    owner = _owner(topology, demand, baseline)
    backwards = _copied(topology.reversed(), gathering(demand, owner), baseline)
    reduced = mirrored(backwards, topology, gathered(demand, owner))
    spread = spreading(demand, owner)
    if all(chunk.origin == chunk.want for chunk in spread.chunks):
        return Schedule(topology, demand, reduced.sends, reduced.finish_us)
    return chained(reduced, _copied(topology, spread, baseline), demand)


def _copied(topology: Topology, demand: Demand, baseline: Baseline) -> Schedule:
    """The fastest of the baseline's variants."""
    teams = teams_of(demand)
    variants = (
        scheduled(topology, demand, [hop for team in teams for hop in planner(topology, team)])
        for planner in baseline.planners
    )
    return min(variants, key=lambda schedule: schedule.finish_us)


def _owner(topology: Topology, demand: Demand, baseline: Baseline) -> Owner:
    blocks = in_blocks(demand)
    if baseline.root is None:
        return blocks
    backwards, chosen = topology.reversed(), {}
    for team in teams_of(demand):
        for number, chunk in enumerate(team.chunks):
            chosen[chunk.id] = baseline.root(backwards, team.members, number)
    return lambda chunk: blocks(chunk) if len(chunk.want) == 1 else chosen[chunk.id]


def offer_baselines(incumbent: Incumbent, settings: Settings) -> None:
    """Every baseline that serves the problem, all in a small part of the time: what is found is then no worse."""
    wanted = sum(len(chunk.want) for chunk in incumbent.problem.demand(1).chunks)
    budget = Budget(min(OFFERED_S, OFFERED_SHARE * incumbent.seconds_left))
    for baseline in OFFERED:
        if incumbent.closed() or not incumbent.seconds_left or wanted * SECONDS_PER_WANT > budget.seconds_left:
            return
        if incumbent.problem.collective in baseline.serves:
            with suppress(InputError):  # hierarchical, where there is no hierarchy
                search_baseline(incumbent, settings, baseline.name, budget)


def search_baseline(incumbent: Incumbent, settings: Settings, name: str, budget: Budget = UNLIMITED) -> None:
    """Offer the baseline's schedules, from the fewest chunks that it needs to more of them, for as long as they get
    better; at least one whatever the time limit and the `budget`."""
    problem, baseline = incumbent.problem, BASELINES[name]
    if problem.collective not in baseline.serves:
        serving = [other.name for other in BASELINES.values() if problem.collective in other.serves]
        raise InputError(
            f"method {name} does not do {problem.collective}; it does {', '.join(baseline.serves)}; for "
            f"{problem.collective} use auto or {', '.join(serving)}"
        )
    incumbent.phase = name
    incumbent.tell()
    if settings.nchunks is not None:
        incumbent.offer_whole(baseline_schedule(problem.topology, problem.demand(settings.nchunks), baseline))
        return
    others_us = incumbent.best.finish_us if incumbent.best is not None else inf
    best_us, idle, spent = inf, 0, 0.0
    before: Schedule | None = None
    for demand in _demands(incumbent, baseline):
        if before and spent * len(demand.chunks) / len(before.demand.chunks) > incumbent.seconds_left:
            return
        began = time.monotonic()
        schedule = baseline_schedule(problem.topology, demand, baseline)
        if best_us < inf and _most_transfers(schedule) > MOST_TRANSFERS:
            return
        incumbent.offer_whole(schedule)
        spent = time.monotonic() - began
        tends_to_us = _tends_to(before, schedule)
        gains = schedule.finish_us < best_us * (1 - INDIFFERENCE) and tends_to_us < others_us
        idle = 0 if gains else PATIENCE if tends_to_us > HOPELESS * others_us else idle + 1
        best_us, before = min(best_us, schedule.finish_us), schedule
        if idle >= PATIENCE or incumbent.closed() or not incumbent.seconds_left or budget.spent:
            return


def _tends_to(before: Schedule | None, now: Schedule) -> float:
    """Where more and more chunks may lead: a pipeline takes what its slowest link does, and a share of the number of
    chunks to fill it; twice that, for what does not divide evenly."""
    if before is None:
        return 0.0
    more = len(now.demand.chunks) / len(before.demand.chunks) - 1
    return now.finish_us - 2 * max(0.0, before.finish_us - now.finish_us) / more if more > 0 else now.finish_us


def _demands(incumbent: Incumbent, baseline: Baseline) -> Iterator[Demand]:
    """The problem in one chunk a share, and in multiples of what the baseline needs."""
    problem = incumbent.problem
    whole = problem.demand(1)
    pieces = baseline.pieces(problem.topology, teams_of(whole))
    split = problem.demand if baseline.root is None else problem.split
    for count in sorted({1, *(pieces * multiple for multiple in MULTIPLES)}):
        demand = whole if count == 1 else split(count)
        if count > 1 and max(chunk.bytes for chunk in demand.chunks) < LEAST_BYTES:
            return
        yield demand


def _most_transfers(schedule: Schedule) -> int:
    """Sends and receives of the rank that has most."""
    return max(Counter(rank for send in schedule.sends for rank in schedule.ends(send)).values(), default=0)
