"""`synthesize`: the searchers take turns at one incumbent until the time is up or the gap is closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from ..collective.demand import collective_named
from ..collective.size import parse_size
from ..errors import InputError
from ..schedule.schedule import Schedule
from ..topology.model import Topology
from ..topology.paths import direct_paths
from .bounds import Bound, lower_bounds, whole_chunks_us
from .epochs import EpochGrid, coarse_epoch_us, fine_epoch_us
from .greedy import search_chunk_counts
from .milp import Milp
from .problem import Problem, Stage
from .solver import SOLVERS, Outcome, new_model

METHODS = ("auto", "greedy", "milp")

#: A schedule with fewer chunks is preferred to one that is faster by less than this.
INDIFFERENCE = 2e-3
#: The gap below which a schedule is optimal.
CLOSED = 1e-6
#: Gaps smaller than this come from adding doubles.
ROUNDING = 1e-12
#: Work per round of the greedy search over chunk counts, in about microseconds of one core.
EFFORT = 1.0e6
#: Where `auto` takes the MILP for worth its while: gaps above this, models of up to so many send variables, so many
#: seconds for each and for all.
AUTO_GAP = 5e-3
AUTO_COLUMNS = 8_000
AUTO_MODEL_S = 4.0
AUTO_MILP_S = 12.0
#: Send variables beyond which a model would not fit in memory.
MAX_COLUMNS = 1_000_000
#: Seeds start below this, so that all that follow are 64-bit numbers.
MOST_SEEDS = 2**63


@dataclass(frozen=True)
class Progress:
    """Where a synthesis stands; the incumbent is None before the first schedule."""

    phase: str
    incumbent_us: float | None
    bound_us: float
    seconds_left: float

    @property
    def gap(self) -> float | None:
        """incumbent / bound − 1."""
        return None if self.incumbent_us is None else _gap(self.incumbent_us, self.bound_us)


@dataclass(frozen=True)
class MilpReport:
    """One MILP solve: the chunk count and grid it was for, how it ended, and the finish before and after."""

    nchunks: int
    grid: str
    epochs: int | None
    epochs_bound: int
    outcome: Outcome
    start_us: float
    finish_us: float | None


@dataclass(frozen=True)
class Synthesis:
    """A schedule with its certificate and how it was found."""

    schedule: Schedule
    method: str
    solver: str | None
    bounds: tuple[Bound, ...]
    seconds: float
    milp: tuple[MilpReport, ...] = ()
    interrupted: bool = False

    @property
    def bound_us(self) -> float:
        """The best lower bound on any schedule's finish."""
        return self.bounds[0].bound_us

    @property
    def gap(self) -> float:
        """finish / bound − 1: no schedule is faster by more than this."""
        return _gap(self.schedule.finish_us, self.bound_us)


def synthesize(
    topology: Topology,
    collective: str,
    size: str | float,
    *,
    root: int = 0,
    nchunks: int | None = None,
    method: str = "auto",
    solver: str = "cbc",
    time_limit: float = 60.0,
    start: Schedule | None = None,
    seed: int = 0,
    jobs: int = 2,
) -> Schedule:
    """The best schedule found for `collective` of `size` ("64MB" or bytes, as nccl-tests count) on `topology`.

    `nchunks` chunks per rank (None: chosen), `method` "auto", "greedy" or "milp", `solver` "cbc" or "highs",
    `time_limit` in seconds (0: the first greedy schedule), `start` a schedule to improve on. The schedule is
    validated. Raises `InputError` for bad arguments and `Refused` for a demand that cannot be met.
    """
    return run(
        topology, collective, size, root=root, nchunks=nchunks, method=method, solver=solver, time_limit=time_limit,
        start=start, seed=seed, jobs=jobs,
    ).schedule  # fmt: skip


def run(
    topology: Topology,
    collective: str,
    size: str | float,
    *,
    root: int = 0,
    nchunks: int | None = None,
    method: str = "auto",
    solver: str = "cbc",
    time_limit: float = 60.0,
    start: Schedule | None = None,
    seed: int = 0,
    jobs: int = 2,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Synthesis:
    """`synthesize`, with everything there is to say about it. Interrupted (Ctrl-C), it returns the best so far."""
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; use {', '.join(METHODS)}")
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}; use {', '.join(SOLVERS)}")
    for name, value, least in (("time_limit", time_limit, 0), ("jobs", jobs, 1), ("seed", seed, 0)):
        if not value >= least:
            raise InputError(f"{name} is {value}; it must be {least} or more")
    if seed >= MOST_SEEDS:
        raise InputError(f"seed {seed} is too large; use less than 2^{MOST_SEEDS.bit_length() - 1}")
    if not 0 <= root < topology.nranks:
        raise InputError(f"root {root} is not a rank of {topology.name}; use 0..{topology.nranks - 1}")
    if topology.nranks < 2:
        raise InputError(f"{topology.name}: has one GPU; a collective needs at least two")
    if method != "greedy":
        new_model(solver)  # a solver that is not installed is missed now, not after the greedy search
    problem = Problem(topology, collective_named(collective), parse_size(size), root)
    search = _Search(problem, time_limit, jobs, seed, solver, report)
    interrupted = False
    try:
        if start is not None:
            search.offer_start(start)
        search.greedy((nchunks,) if nchunks is not None else problem.chunk_counts())
        if method != "greedy":
            search.milp(thorough=method == "milp")
    except KeyboardInterrupt:
        if search.best is None:
            raise
        interrupted = True
    return search.result(interrupted)


class _Search:
    """The incumbent, stage by stage and chunk count by chunk count."""

    def __init__(
        self,
        problem: Problem,
        time_limit: float,
        jobs: int,
        seed: int,
        solver: str,
        report: Callable[[Progress], None],
    ) -> None:
        self.problem = problem
        self.began = time.monotonic()
        self.deadline = self.began + time_limit
        self.jobs = jobs
        self.seed = seed
        self.solver = solver
        self.report = report
        self.phase = "bounds"
        self.stages = problem.stages
        self.bounds = lower_bounds(problem.topology, problem.demand(1))
        self.parts: list[dict[int, Schedule]] = [{} for _ in self.stages]  # per stage: chunk count → best
        self.whole: dict[int, tuple[str, Schedule]] = {}  # the demand's nchunks → (method, best)
        self.no_later_us = inf
        self.reports: list[MilpReport] = []

    # -- the incumbent ---------------------------------------------------------------------------------

    @property
    def best(self) -> Schedule | None:
        """The incumbent, whatever its chunk count."""
        return min((schedule for _, schedule in self.whole.values()), key=lambda s: s.finish_us, default=None)

    def offer(self, stage: int, part: Schedule) -> None:
        """A schedule for one stage, maybe better: see what it makes of the whole."""
        c = part.demand.nchunks
        known = self.parts[stage].get(c)
        if known is None or part.finish_us < known.finish_us:
            self.parts[stage][c] = part
        if all(c in parts for parts in self.parts):
            self._consider(self.problem.assemble([parts[c] for parts in self.parts]))
        self.tell()

    def offer_start(self, start: Schedule) -> None:
        """The user's schedule becomes the incumbent if it meets this problem's demand. Where it is one search's
        answer on the usual paths, the MILP may improve on it."""
        problem = self.problem
        if start.topology != problem.topology or start.demand.collective != problem.collective:
            raise InputError("the start schedule is for another topology or collective; start from one made for these")
        if start.demand.size_bytes != problem.size_bytes:
            raise InputError(f"the start schedule is for {start.demand.size_bytes:g} bytes; use its size")
        if start.demand != problem.split(start.demand.nchunks):
            raise InputError(f"the start schedule has another root than {problem.root}, or other chunks; use its own")
        start.validate()
        start = start.retimed()
        self.phase = "start"
        self.no_later_us = start.finish_us
        usual = {path.links for path in direct_paths(problem.topology)}
        if not start.demand.reducing and all(send.path in usual for send in start.sends):
            self.offer(0, start)
        else:
            self._consider(start)

    def _consider(self, schedule: Schedule) -> None:
        count = schedule.demand.nchunks
        if count not in self.whole or schedule.finish_us < self.whole[count][1].finish_us:
            self.whole[count] = (self.phase, schedule)

    def result(self, interrupted: bool) -> Synthesis:
        """The incumbent with the fewest chunks among those that are as good as the best, proved; a start is never
        made worse."""
        best = self.best
        assert best is not None, "the greedy search always leaves a schedule"
        latest_us = min(best.finish_us * (1 + INDIFFERENCE), max(best.finish_us, self.no_later_us))
        good = [c for c, (_, s) in self.whole.items() if s.finish_us <= latest_us]
        method, schedule = self.whole[min(good)]
        schedule.validate()
        return Synthesis(
            schedule=schedule,
            method=method,
            solver=self.solver if self.reports else None,
            bounds=self.bounds,
            seconds=time.monotonic() - self.began,
            milp=tuple(self.reports),
            interrupted=interrupted,
        )

    # -- when to stop ----------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def closed(self, gap: float = CLOSED) -> bool:
        """Whether no schedule can be better by more than `gap`."""
        best = self.best
        return best is not None and _gap(best.finish_us, self.bounds[0].bound_us) <= gap

    def tell(self) -> None:
        """Report the incumbent."""
        best = self.best
        self.report(
            Progress(self.phase, None if best is None else best.finish_us, self.bounds[0].bound_us, self.seconds_left)
        )

    # -- the searchers ---------------------------------------------------------------------------------

    def greedy(self, counts: tuple[int, ...]) -> None:
        """Every stage over the chunk counts; at least one schedule whatever the time limit."""
        self.phase = "greedy"
        self.tell()
        for i, stage in enumerate(self.stages):
            finish_by = time.monotonic() + self.seconds_left / (len(self.stages) - i)

            def enough(i: int = i, finish_by: float = finish_by) -> bool:
                return bool(self.parts[i]) and (self.closed() or time.monotonic() >= finish_by)

            search_chunk_counts(
                stage.topology,
                [stage.demand(c) for c in counts],
                floor_us=lower_bounds(stage.topology, stage.demand(1))[0].bound_us,
                seed=self.seed,
                jobs=self.jobs,
                effort=EFFORT / len(counts),
                improved=lambda part, i=i: self.offer(i, part),  # type: ignore[misc]
                done=enough,
            )

    def milp(self, *, thorough: bool) -> None:
        """Improve each stage's schedules by the exact model, smallest models first."""
        self.phase = "milp"
        deadline = self.deadline if thorough else min(self.deadline, time.monotonic() + AUTO_MILP_S)
        for i, model, name in self._models(MAX_COLUMNS if thorough else AUTO_COLUMNS):
            left = deadline - time.monotonic()
            if left <= 0 or self.closed(CLOSED if thorough else AUTO_GAP):
                return
            self.tell()
            seconds = left if thorough else min(AUTO_MODEL_S, left)
            result = model.improve(seconds=seconds, threads=self.jobs, seed=self.seed)
            finish = None if result.schedule is None else result.schedule.finish_us
            c, before = model.start.demand.nchunks, model.start.finish_us
            self.reports.append(MilpReport(c, name, result.epochs, result.epochs_bound, result.outcome, before, finish))
            if result.schedule is not None and result.schedule.finish_us < before:
                self.offer(i, result.schedule)

    def _models(self, most: int) -> list[tuple[int, Milp, str]]:
        """The models with at most `most` columns that may improve on the best of their stage, smallest first."""
        models = []
        for i, stage in enumerate(self.stages):
            best_us = min(part.finish_us for part in self.parts[i].values())
            for part in self.parts[i].values():
                choices = len(part.demand.chunks) * len(direct_paths(stage.topology))  # about the columns of an epoch
                if choices > most or self.seconds_left <= 0:
                    continue
                if whole_chunks_us(stage.topology, part.demand) >= best_us * (1 - INDIFFERENCE):
                    continue
                for name, tau in _grids(stage, part):
                    model = Milp(EpochGrid(stage.topology, part.demand, tau), part, self.solver)
                    columns = model.columns(most + 1)
                    if model.horizon > model.first_late and columns <= most:
                        models.append((columns, i, model, name))
        return [(i, model, name) for _, i, model, name in sorted(models, key=lambda entry: entry[0])]


def _grids(stage: Stage, part: Schedule) -> Iterator[tuple[str, float]]:
    """Fine epochs and, where they differ, coarse ones."""
    fine, coarse = fine_epoch_us(stage.topology, part.demand), coarse_epoch_us(stage.topology, part.demand)
    yield "fine", fine
    if coarse > 1.01 * fine:
        yield "coarse", coarse


def _gap(finish_us: float, bound_us: float) -> float:
    gap = finish_us / bound_us - 1 if bound_us > 0 else 0.0
    return 0.0 if abs(gap) < ROUNDING else gap
