"""`synthesize`: the searchers take turns at one incumbent until the time is up or the gap is closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from numbers import Real
from pathlib import Path

from ..collective.matrix import Matrix
from ..errors import InputError, unknown
from ..schedule.read import read_start
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.translations import host_translations
from ..topology.without import without as degraded
from .ask import DemandLike, GroupLike, ask
from .astar import search_by_rounds
from .baselines.search import ALIASES, BASELINES, offer_baselines, search_baseline
from .bounds import Bound
from .exact import MilpReport, search_exactly
from .greedy import greedy_seconds, search_greedily
from .hierarchy import search_hierarchically
from .incumbent import Incumbent, Progress, gap
from .levels import COLLECTIVES as LEVELLED
from .levels import search_levels
from .lp import ENOUGH, search_flow
from .pipelines import plant_pipelines
from .polish import polish
from .problem import Problem
from .rails import search_rails
from .ruled_search import check_ruled, search_under_rules
from .rules import NO_RULES, Rules
from .settings import Settings
from .solver import new_model
from .symmetric_search import search_symmetrically
from .trees import search_trees

#: The searches; and the field's algorithms, as they are.
SEARCHES = ("auto", "trees", "greedy", "bfb", "lp", "milp", "astar")
METHODS = (*SEARCHES, *BASELINES)
#: A searcher's turn at the incumbent.
Search = Callable[[Incumbent, Settings], None]
#: Seconds of a greedy trial below which the plain searches come first: there they beat what is built of structure.
SMALL_S = 0.1
#: The gap that no schedule has: such a search always has its turn.
NEVER = -inf
#: The gap at which small machines are done with, and the one below which they need no help from structure.
NEARLY = 1e-3
GOOD = 0.05
#: Seconds for a first greedy schedule, if need be.
SLOW_S = 20.0
#: The share of the time limit that is left at least to choose between programs.
CHOOSING_SHARE = 0.2


@dataclass(frozen=True)
class Synthesis:
    """A schedule with its certificate and how it was found; with what else was found (method and schedule), and
    the seconds in which programs of them may be tried."""

    schedule: Schedule
    method: str
    solver: str | None
    bounds: tuple[Bound, ...]
    seconds: float
    milp: tuple[MilpReport, ...] = ()
    interrupted: bool = False
    candidates: tuple[tuple[str, Schedule], ...] = ()
    seconds_left: float = 0.0

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """`schedule`, and others nearly as fast, whose programs may be faster than its."""
        return tuple(schedule for _, schedule in self.candidates)

    def choosing(self, schedule: Schedule) -> Synthesis:
        """The same with another of `schedules` as the answer."""
        if schedule is self.schedule:
            return self
        schedule.validate()
        method = next(method for method, candidate in self.candidates if candidate is schedule)
        return replace(self, schedule=schedule, method=method)

    @property
    def bound_us(self) -> float:
        """The best lower bound on any schedule's finish."""
        return self.bounds[0].bound_us

    @property
    def gap(self) -> float:
        """finish / bound − 1: no schedule is faster by more than this."""
        return gap(self.schedule.finish_us, self.bound_us)


def synthesize(
    topology: Topology,
    collective: str,
    size: str | float | None = None,
    *,
    root: int = 0,
    groups: str | Sequence[GroupLike] = (),
    matrix: str | Path | Matrix | None = None,
    demand: DemandLike | None = None,
    without: str | Sequence[str] = (),
    method: str = "auto",
    time_limit: float = 60.0,
    start: str | Path | Schedule | None = None,
    nchunks: int | None = None,
    solver: str = "cbc",
    epochs: str = "auto",
    seed: int = 0,
    jobs: int = 2,
    rules: Rules = NO_RULES,
) -> Schedule:
    """The best schedule found for `collective` of `size` ("64MB" or bytes, as nccl-tests count) on `topology`.

    `groups` of ranks ("0-3", (4, 5)…) each have the collective, of that size, at once; "alltoallv" takes a `matrix` of
    bytes (row = sender; or a CSV file), "custom" a `demand` (see `collective.custom`; or a JSON file). `without` names
    parts that have failed ("link:3-5", "nic:2", "gpu:4").
    `nchunks` chunks per rank (None: chosen), `method` "auto", "trees", "greedy", "bfb", "lp", "milp", "astar" or a
    baseline ("ring"…), `solver` "cbc" or "highs", `epochs` of the MILP "fast", "slow" or "auto", `time_limit` in
    seconds (0: the first schedule), `start` a schedule or its file to improve on or repair, `rules` (method "milp",
    collectives that only copy) that it must keep. The schedule is validated. Raises `InputError` for bad arguments and
    `Refused` for a demand that cannot be met.
    """
    settings = Settings(nchunks=nchunks, solver=solver, epochs=epochs, seed=seed, jobs=jobs, rules=rules)
    topology = degraded(topology, [without] if isinstance(without, str) else without).topology
    problem = ask(topology, collective, size, root=root, groups=groups, matrix=matrix, demand=demand)
    if isinstance(start, (str, Path)):
        start = read_start(start, problem.topology, problem.size_bytes)
    return run(problem, settings, method=method, time_limit=time_limit, start=start).schedule


def run(
    problem: Problem,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    *,
    method: str = "auto",
    time_limit: float = 60.0,
    start: Schedule | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Synthesis:
    """`synthesize`, with everything there is to say about it. Interrupted (Ctrl-C), it returns the best so far."""
    method = method_named(method)
    if not isinstance(time_limit, Real) or not time_limit >= 0:
        raise InputError(f"time_limit is {time_limit!r}; it must be a number of seconds, 0 or more")
    if method in ("auto", "milp", "astar"):
        new_model(settings.solver)  # a solver that is not installed is missed now, not after the greedy search
    if method == "lp" and not all(stage.demand(1).copy_free for stage in problem.stages):
        raise InputError(f"{problem.collective} copies data, which the LP does not; use --method auto, greedy or milp")
    if settings.rules.constrain:
        check_ruled(problem, method, settings.rules)
    incumbent = Incumbent(problem, time_limit, report)
    solved: list[MilpReport] = []
    interrupted = False
    try:
        if settings.rules.constrain:
            search_under_rules(incumbent, settings, start, solved.append)
        else:
            _search(incumbent, settings, method, start, solved.append)
    except KeyboardInterrupt:
        if incumbent.best is None:
            raise
        interrupted = True
    candidates = incumbent.candidates()
    found_by, schedule = candidates[0]
    schedule.validate()
    return Synthesis(
        schedule=schedule,
        method=found_by,
        solver=settings.solver if solved else None,
        bounds=incumbent.bounds,
        seconds=time.monotonic() - incumbent.began,
        milp=tuple(solved),
        interrupted=interrupted,
        candidates=candidates,
        seconds_left=0.0 if interrupted else max(incumbent.seconds_left, CHOOSING_SHARE * time_limit),
    )


def _search(
    incumbent: Incumbent,
    settings: Settings,
    method: str,
    start: Schedule | None,
    solved: Callable[[MilpReport], None],
) -> None:
    """The searchers of the method, one after the other."""
    if start is not None:
        incumbent.offer_start(start)
    if method == "auto":
        for search, enough in _turns(incumbent.problem, solved):
            if not incumbent.closed(enough):
                search(incumbent, settings)
        return
    *before, own = _searches_of(method, solved)
    for search in before:
        search(incumbent, settings)
    own(incumbent, replace(settings, thorough=True))
    if incumbent.best is not None:
        return
    if method == "bfb":
        what = ", ".join(LEVELLED)
        raise InputError(f"method bfb does {what} of all GPUs over links between them, not this; use auto")
    search_greedily(incumbent, settings)


def _turns(problem: Problem, solved: Callable[[MilpReport], None]) -> list[tuple[Search, float]]:
    """The searches of "auto" in their order, each with the gap at which it is not needed: on small machines plain ones
    before those of structure, trees too where hosts are unlike; on large ones what takes the least time first."""
    exactly = partial(search_exactly, solved=solved)
    symmetry, trees = (search_symmetrically, NEVER), (search_trees, NEARLY)  # at large sizes it has its programs
    outright = [(search_flow, ENOUGH), (search_levels, ENOUGH), (plant_pipelines, ENOUGH)]
    if greedy_seconds(problem) <= SMALL_S:
        return [
            *outright,
            (search_greedily, NEARLY),
            (offer_baselines, NEVER),  # before what may take all the time
            *((trees, symmetry) if _unlike_hosts(problem.topology) else (symmetry, trees)),
            (_search_by_hosts, GOOD),
            (exactly, NEVER),
            (polish, ENOUGH),
        ]
    return [
        (_search_by_hosts, NEVER),
        *outright,
        (offer_baselines, ENOUGH),
        (search_symmetrically, ENOUGH),
        (_search_plainly, NEVER),
        (exactly, NEVER),
        (polish, ENOUGH),
    ]


def _unlike_hosts(topology: Topology) -> bool:
    return len(topology.hosts) > 1 and host_translations(topology) is None


def _searches_of(method: str, solved: Callable[[MilpReport], None]) -> list[Search]:
    """The searches of any other method: what its own starts from, and its own, which has all the time that is left."""
    searches: dict[str, list[Search]] = {
        "lp": [search_flow],
        "bfb": [search_levels],
        "astar": [search_by_rounds],
        "greedy": [search_greedily],
        "trees": [plant_pipelines, search_greedily, search_trees],
        "milp": [search_greedily, partial(search_exactly, solved=solved)],
    }
    return searches.get(method) or [partial(search_baseline, name=method)]


def method_named(name: str) -> str:
    """The method's own name ("rhd" is recursive-doubling). Raises `InputError`, with what may have been meant."""
    plain = str(name).lower().replace("_", "-")
    method = ALIASES.get(plain, plain)
    if method not in METHODS:
        raise unknown("method", name, METHODS, meant={alias: alias for alias in ALIASES})
    return method


def _search_by_hosts(incumbent: Incumbent, settings: Settings) -> None:
    search_rails(incumbent, settings)
    search_hierarchically(incumbent, settings, part_solver(settings, incumbent))


def _search_plainly(incumbent: Incumbent, settings: Settings) -> None:
    """The greedy search and trees, if there is time for some trials; for hundreds of GPUs without structure what the
    field does."""
    trial_s = greedy_seconds(incumbent.problem)
    worth_it = not incumbent.closed(ENOUGH) and incumbent.seconds_left > 5 * trial_s
    if worth_it or (incumbent.best is None and trial_s <= SLOW_S):
        search_greedily(incumbent, settings)
    if not incumbent.closed(ENOUGH) and incumbent.seconds_left > 5 * trial_s:
        search_trees(incumbent, settings)
    for name in ("hierarchical", "direct"):
        if incumbent.best is None and incumbent.problem.collective in BASELINES[name].serves:
            with suppress(InputError):  # hierarchical, where there is no hierarchy
                search_baseline(incumbent, settings, name)
    if incumbent.best is None:
        search_greedily(incumbent, settings)


def part_solver(settings: Settings, incumbent: Incumbent) -> Callable[[Problem], Schedule]:
    """How sub-problems are solved: in so many rounds, not in so much time, so that the whole is the same every time."""
    settings = replace(settings, nchunks=None, thorough=False, rounds=1)

    def solve(part: Problem) -> Schedule:
        solved = Incumbent(part, incumbent.seconds_left, lambda progress: None)
        for search, enough in ((search_flow, NEARLY), (search_greedily, NEARLY), (search_symmetrically, GOOD)):
            if not solved.closed(enough):
                search(solved, settings)
        return solved.chosen()[1]

    return solve
