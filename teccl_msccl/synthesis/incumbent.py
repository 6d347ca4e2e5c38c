"""The incumbent: the best schedules so far, and whether it is time to stop improving them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ..errors import InputError
from ..schedule.schedule import Schedule
from ..topology.paths import direct_paths
from .bounds import lower_bounds, program_bound_us, program_bounds
from .budget import Budget
from .problem import Problem, Stage
from .repair import start_on

#: A schedule with fewer chunks is preferred to one that is faster by less than this.
INDIFFERENCE = 1e-3
#: Schedules that are slower than the best by no more than this may have the faster program; so many are kept.
NEARBY = 0.05
MOST_OTHERS = 4
#: Peers of a GPU beyond which a runtime may be unable to name all whom its sends wait for.
MOST_PEERS = 128
#: The gap below which a schedule is optimal.
CLOSED = 1e-6
#: Gaps smaller than this come from adding doubles.
ROUNDING = 1e-12
#: The share of the time limit in which bounds, and those of all stages, are computed, and what they get at the least.
BOUNDS_SHARE = 0.2
LEAST_BOUNDS_S = 0.5


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
        return None if self.incumbent_us is None else gap(self.incumbent_us, self.bound_us)


class Incumbent:
    """The best schedules of `problem`, stage by stage and chunk count by chunk count.

    Searchers set `phase` to their name, offer what they find with `offer` (a schedule of one stage) or `offer_whole`
    (one of the whole problem), and stop when `seconds_left` or `closed` says so.
    """

    def __init__(self, problem: Problem, time_limit: float, report: Callable[[Progress], None]) -> None:
        self.problem = problem
        self.began = time.monotonic()
        self.deadline = self.began + time_limit
        self.report = report
        self.phase = "bounds"
        self.stages = problem.stages
        self._bounds_s = max(LEAST_BOUNDS_S, BOUNDS_SHARE * time_limit)
        self.bounds = program_bounds(problem.topology, problem.demand(1), Budget(self._bounds_s))
        self._program_us = self.bounds[0].bound_us
        self.parts: list[dict[int, Schedule]] = [{} for _ in self.stages]  # per stage: chunk count → best
        self.whole: dict[int, tuple[str, Schedule]] = {}  # the demand's nchunks → (method, best)
        self._of_few_peers: tuple[str, Schedule] | None = None  # the best of those that others beat
        self._no_later_us = inf
        self._floors_us: dict[int, float] = {}

    # -- improving it ----------------------------------------------------------------------------------

    def offer(self, stage: int, part: Schedule) -> None:
        """A schedule for one stage, maybe better: see what it makes of the whole."""
        c = part.demand.nchunks
        known = self.parts[stage].get(c)
        if known is not None and part.finish_us >= known.finish_us:
            return
        self.parts[stage][c] = part
        if all(c in parts for parts in self.parts):
            self._consider(self.problem.assemble([parts[c] for parts in self.parts]))
        self.tell()

    def offer_whole(self, schedule: Schedule) -> None:
        """A schedule for the whole problem, maybe better."""
        self._consider(schedule)
        self.tell()

    def offer_start(self, start: Schedule) -> None:
        """The user's schedule becomes the incumbent if it meets this problem's demand; one for a machine of which this
        topology is what is left is repaired. Where it is one search's
        answer on the usual paths, the MILP may improve on it."""
        problem = self.problem
        if start.demand.collective == problem.collective:
            start = start_on(start, problem.topology, problem.split)
        if start.topology != problem.topology or start.demand.collective != problem.collective:
            raise InputError("the start schedule is for another topology or collective; start from one made for these")
        if start.demand.size_bytes != problem.size_bytes:
            raise InputError(f"the start schedule is for {start.demand.size_bytes:g} bytes; use its size")
        if start.demand != problem.split(start.demand.nchunks):
            raise InputError(f"the start schedule has another root than {problem.root}, or other chunks; use its own")
        start.validate()
        start = start.retimed()
        self.phase = "start"
        self._no_later_us = start.finish_us
        usual = {path.links for path in direct_paths(problem.topology)}
        if any(send.path not in usual for send in start.sends):
            self.bounds = lower_bounds(problem.topology, problem.demand(1), Budget(self._bounds_s))
        if not start.demand.reducing and all(send.path in usual for send in start.sends):
            self.offer(0, start)
        else:
            self.offer_whole(start)

    def _consider(self, schedule: Schedule) -> None:
        count = schedule.demand.nchunks
        worse = (self.phase, schedule)
        if count not in self.whole or schedule.finish_us < self.whole[count][1].finish_us:
            worse, self.whole[count] = self.whole.get(count, worse), worse
        if self.problem.topology.nranks > MOST_PEERS and worse is not self.whole[count]:
            self._keep_for_few_peers(worse)

    def _keep_for_few_peers(self, beaten: tuple[str, Schedule]) -> None:
        known = self._of_few_peers
        if (known is None or beaten[1].finish_us < known[1].finish_us) and _most_peers(beaten[1]) <= MOST_PEERS:
            self._of_few_peers = beaten

    # -- how it stands ---------------------------------------------------------------------------------

    @property
    def best(self) -> Schedule | None:
        """The fastest so far, whatever its chunk count."""
        return min((schedule for _, schedule in self.whole.values()), key=lambda s: s.finish_us, default=None)

    def chosen(self) -> tuple[str, Schedule]:
        """The schedule with the fewest chunks among those that are as good as the best, and the method that found it;
        a start is never made worse."""
        best = self.best
        assert best is not None, "a search always leaves a schedule"
        latest_us = min(best.finish_us * (1 + INDIFFERENCE), max(best.finish_us, self._no_later_us))
        good = [c for c, (_, s) in self.whole.items() if s.finish_us <= latest_us]
        return self.whole[min(good)]

    def candidates(self) -> tuple[tuple[str, Schedule], ...]:
        """What is `chosen`, and the best with other numbers of chunks if they are nearly as fast, fastest first, and of
        each octave of such numbers one: a program may keep another's time better. Where the first has more peers than a
        program may be able to name, the last has fewer."""
        first = self.chosen()
        latest_us = max(first[1].finish_us, min(first[1].finish_us * (1 + NEARBY), self._no_later_us))
        octaves = {first[1].demand.nchunks.bit_length(): first}
        for each in sorted(self.whole.values(), key=lambda each: each[1].finish_us):
            if each[1].finish_us <= latest_us:
                octaves.setdefault(each[1].demand.nchunks.bit_length(), each)
        found = tuple(octaves.values())[: 1 + MOST_OTHERS]
        if self.problem.topology.nranks > MOST_PEERS and _most_peers(first[1]) > MOST_PEERS:
            for other in self.whole.values():
                self._keep_for_few_peers(other)
            return found if self._of_few_peers is None else (*found, self._of_few_peers)
        return found

    @property
    def bound_us(self) -> float:
        """The best lower bound on any schedule's finish."""
        return self.bounds[0].bound_us

    def floor_us(self, stage: int) -> float:
        """The best lower bound on a stage's finish."""
        if stage not in self._floors_us:
            self._floors_us[stage] = self._computed_floor_us(self.stages[stage])
        return self._floors_us[stage]

    def _computed_floor_us(self, stage: Stage) -> float:
        demand = stage.demand(1)
        if (stage.topology, demand) == (self.problem.topology, self.problem.demand(1)):
            return self._program_us
        return program_bound_us(stage.topology, demand, Budget(self._bounds_s / len(self.stages)))

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def closed(self, to: float = CLOSED) -> bool:
        """Whether no schedule can be better by more than `to`."""
        best = self.best
        return best is not None and gap(best.finish_us, self.bound_us) <= to

    def stage_closed(self, stage: int) -> bool:
        """Whether a schedule of the stage is at its bound."""
        best_us = min((part.finish_us for part in self.parts[stage].values()), default=inf)
        return gap(best_us, self.floor_us(stage)) <= CLOSED

    def tell(self) -> None:
        """Report how it stands."""
        best = self.best
        self.report(Progress(self.phase, None if best is None else best.finish_us, self.bound_us, self.seconds_left))


def gap(finish_us: float, bound_us: float) -> float:
    """finish / bound − 1, without the rounding of sums of doubles."""
    share = finish_us / bound_us - 1 if bound_us > 0 else 0.0
    return 0.0 if abs(share) < ROUNDING else share


def _most_peers(schedule: Schedule) -> int:
    """Of the GPU that has most."""
    peers: dict[int, set[int]] = defaultdict(set)
    for a, b in {schedule.ends(send) for send in schedule.sends}:
        peers[a].add(b)
        peers[b].add(a)
    return max(map(len, peers.values()), default=0)
