"""Tuning: of the programs that a schedule can become, the one that the program simulator takes for fastest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import Refused
from ..schedule.schedule import Schedule
from .pacing import COMPETING
from .program import Program
from .protocol import PROTOCOL, slicing
from .simulate import ProgramTiming, simulate
from .targets import MAX_NODES_PER_RANK

#: The most instances, and multiples of the channels, that are tried.
MOST_PARTS = 16
#: More parts make sizes too coarse: a size must be a multiple of all parts.
MOST_ROUNDS = 64
#: How sends wait for their turn where threadblocks are slower than links, and arrivals come late.
SLOW_PACES = ("none", "links")
#: What is best as a rule comes first, where not all of it can be tried.
LIKELY = ("links", "arrivals", "slow", "none", "moments", "ahead", "further")
#: How long it takes to lower a send that waits for its turn, with one that does not as the unit.
EFFORT = {"none": 1, "links": 2, "slow": 2, "ahead": 2, "further": 2, "arrivals": 3, "moments": 3}
#: Of so many chunks at most larger ones are made where no others fit: what is still coarser is not what was asked for.
MOST_TOGETHER = 8
#: What a larger program has to gain.
WORTHWHILE = 0.01
#: So near the schedule's time programs keep it all equally well: the time from the call decides. A finer one is not
#: worth its while there where it is dear to lower: in sends by their effort.
NEAR = 0.04
DEAR = 20_000
#: Times that differ by less are equal.
SAME = 1e-9
#: Sends in all the programs that are tried for one schedule, by their effort: a few seconds' worth.
MOST_SENDS_TO_TRY = 90_000


@dataclass(frozen=True)
class Choice:
    """What is tuned: the protocol, how sends wait for their turn, into how many parts chunks are cut that move side by
    side, or in rounds one after the other, maybe staggered, how many are one chunk instead, the multiple of the
    channels that keep the pace, and whether neighbouring chunks that go together are one step, what is passed on is
    received and sent in one, and connections across hosts have no more channels than they must."""

    protocol: str
    pace: str = "none"
    instances: int = 1
    rounds: int = 1
    staggered: bool = False
    together: int = 1
    spread: int = 1
    merged: bool = False
    fused: bool = False
    few: bool = False


@dataclass(frozen=True)
class _Tried:
    """A program of the schedule, and when it finishes with the links as the schedule takes them."""

    choice: Choice
    program: Program
    schedule: Schedule
    finish_us: float

    @cached_property
    def from_call_us(self) -> float:
        """The time from the call to the end, with the protocol's efficiency and latency."""
        timing = _simulated(self.program, self.schedule, neutral=False)
        return timing.launch_us + timing.finish_us

    @cached_property
    def cost_us(self) -> float:
        """What counts: the time from the call, and the more the less of the schedule's time is kept."""
        return self.from_call_us * self._late

    def costs_less(self, than_us: float) -> bool:
        """Whether the cost is less; mostly the time on the schedule's links says no: protocols add to it."""
        return (PROTOCOL[self.program.protocol].launch_us + self.finish_us) * self._late < than_us > self.cost_us

    @property
    def _late(self) -> float:
        """1 near the schedule's time; beyond, a per cent of it is worth two from the call."""
        near_us = self.schedule.finish_us * (1 + NEAR)
        return (self.finish_us / near_us) ** 2 if self.finish_us > near_us else 1.0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, when there was a `program` already."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program


class Tuning:
    """The fastest program so far. `build` makes one of a choice, or raises `Refused`."""

    def __init__(self, schedule: Schedule, build: Callable[[Choice], Program]) -> None:
        self.schedule, self.build = schedule, build
        self._chunk_bytes = max((chunk.bytes for chunk in schedule.demand.chunks), default=0.0)
        self._best: _Tried | None = None
        self._tuned: list[_Tried] = []  # of each protocol the best
        self._spent = 0
        self._tried: set[Choice] = set()
        self._refusal: Refused | None = None  # of the first choice, which is the plainest

    def run(
        self,
        protocols: Sequence[str],
        paces: Sequence[str],
        instances: int | None,
        spread: int | None,
        *,
        fuse: bool,
        unroll: bool,
    ) -> Program:
        """Of each protocol, the likeliest first: how sends wait for their turn (one of `paces`) and, if they may
        (`unroll`), into how many rounds they go; then, where threadblocks are slower than links, instances and channels
        that are not given, together and by themselves. Of the best: whether to fuse steps, if the target has such
        (`fuse`), and what else makes it smaller. Raises `Refused` when nothing fits, `Interrupted` with the best so far
        at Ctrl-C."""
        try:
            self._tune(protocols, paces, instances, spread, unroll=unroll)
            self._simplify(replace(self.best.choice, merged=True), _steps)
            if fuse:
                self._simplify(replace(self.best.choice, fused=True), _steps)
            self._simplify(replace(self.best.choice, few=True), self._connections_across)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            raise Interrupted(min([*self._tuned, self._best], key=_cost_us).program) from None
        return self.best.program

    def _tune(
        self, protocols: Sequence[str], paces: Sequence[str], instances: int | None, spread: int | None, *, unroll: bool
    ) -> None:
        """The best of each protocol's best. Protocols that come to nothing cost none of what can be tried."""
        paces = self._first_things_first(paces)
        plain = Choice(protocols[0], instances=instances or 1, spread=spread or 1)
        starts: list[_Tried] = []
        for protocol in self._usable(protocols, instances):
            if not self._pays(protocol):
                continue
            if start := self._start(replace(plain, protocol=protocol), paces, gather=instances is None and not starts):
                starts.append(start)
                self._best = min(starts, key=_cost_us)
        for start in sorted(starts, key=_cost_us):
            if start is self._best or self._pays(start.choice.protocol):
                self._best = start
                self._improve(paces, instances, spread, unroll)
                self._tuned.append(self._best)
                self._best = min(self._tuned, key=_cost_us)

    def _start(self, plain: Choice, paces: Sequence[str], gather: bool) -> _Tried | None:
        """The first program that fits, if need be with larger chunks, where they may be (`gather`)."""
        first = [
            replace(plain, pace=pace, merged=merged)
            for pace in dict.fromkeys((paces[0], "none"))
            for merged in (False, True)
        ]
        if gather:
            unpaced = [choice for choice in first if choice.pace == "none"]
            first += [replace(choice, together=many) for many in self._gatherings(MOST_TOGETHER) for choice in unpaced]
        return next((tried for tried in map(self._try, first) if tried is not None), None)

    def _improve(self, paces: Sequence[str], instances: int | None, spread: int | None, unroll: bool) -> None:
        """Waits for turns, rounds, instances and channels."""
        whole = self.best.choice
        if unroll:
            self._unroll(paces, spread is None)
        self._offer(replace(whole, pace=pace) for pace in paces)
        if instances is None:
            self._gather()
        slow = bool(self.schedule.topology.threadblock_GBps)  # threadblocks, where links may be faster
        turns = [pace for pace in paces if pace in COMPETING or (slow and pace in SLOW_PACES)]
        self._multiply(slow and instances is None, spread is None, turns)

    def _usable(self, protocols: Sequence[str], instances: int | None) -> Sequence[str]:
        """The first, and of the others those of which a slot holds a part of a chunk: the rest have no latency to
        save."""
        part = self._chunk_bytes / (instances or MOST_PARTS)
        return [each for each in protocols if each == protocols[0] or part <= PROTOCOL[each].slot_bytes]

    def _pays(self, protocol: str) -> bool:
        """Whether a program under it can be faster from the call than the best so far: the busiest link says."""
        least_us = PROTOCOL[protocol].launch_us + self._busiest_us / PROTOCOL[protocol].efficiency
        return self._best is None or least_us < self._best.from_call_us

    @cached_property
    def _busiest_us(self) -> float:
        """For how long the schedule keeps a link."""
        links = self.schedule.topology.link_by_id
        chunk_bytes = {chunk.id: chunk.bytes for chunk in self.schedule.demand.chunks}
        busy_us: defaultdict[int, float] = defaultdict(float)
        for send in self.schedule.sends:
            for link in send.path:
                busy_us[link] += chunk_bytes[send.chunk] / (links[link].bandwidth_GBps * 1e3)
        return max(busy_us.values(), default=0.0)

    @property
    def best(self) -> _Tried:
        """Raises the first refusal where nothing was fit."""
        if self._best is None:
            raise self._refusal or Refused(f"{self.schedule.demand.collective}: nothing to lower")
        return self._best

    def _first_things_first(self, paces: Sequence[str]) -> Sequence[str]:
        """The order in which to try them: none at first, being the simplest, unless there is time for few only."""
        costs = sum(self._cost(Choice("Simple", pace)) for pace in paces)
        return paces if costs <= MOST_SENDS_TO_TRY else sorted(paces, key=LIKELY.index)

    def _unroll(self, paces: Sequence[str], spread: bool) -> None:
        """Where a chunk fills several slots, and the runtime would loop over the program, as many rounds: the loops
        know nothing of turns. Half as many where that does not fit, and so on. What waits for turns as a whole does so
        in rounds, else they are staggered, on twice the channels if they may (`spread`): one that is late then holds
        up but every other."""
        whole = self.best.choice
        slots = slicing(self._chunk_bytes / whole.instances, PROTOCOL[whole.protocol]).iterations
        rounds = min(slots, self._most_rounds() // whole.instances)
        while rounds > 1 and not self._good_enough:
            turns = [replace(whole, rounds=rounds, pace=pace) for pace in sorted(paces, key=LIKELY.index)]
            staggered = replace(whole, rounds=rounds, pace="none", staggered=True, spread=whole.spread * (1 + spread))
            fits = whole.pace != "none" and self._offer(turns[:1])
            fits = self._stagger(staggered) or fits
            if self._offer(turns) or fits:
                break
            rounds = -(-rounds // 2)

    def _stagger(self, choice: Choice) -> bool:
        """Staggered rounds, and for as long as that pays twice as many, in which hops are less late. Do any fit?"""
        before, fits = None, self._offer([choice])
        while self.best.choice.staggered and self.best is not before and not self._good_enough:
            before = self.best
            finer = replace(before.choice, rounds=2 * before.choice.rounds)
            dear = self._cost(finer) > DEAR and self.best.finish_us <= self.schedule.finish_us * (1 + NEAR)
            if finer.rounds * finer.instances <= self._most_rounds() and not dear:
                self._offer([finer])
        return fits

    def _gather(self) -> None:
        """Fewer and larger chunks, where they need no rounds."""
        choice = self.best.choice
        if choice.rounds == 1:
            in_vain = 0
            for together in self._gatherings(self.schedule.demand.nchunks):
                before = self.best
                self._offer([replace(choice, together=together)])
                in_vain = in_vain + 1 if self.best is before else 0
                if in_vain == 2:
                    break

    def _gatherings(self, most: int) -> list[int]:
        """Of how many chunks, up to `most`, larger ones can be made."""
        nchunks = self.schedule.demand.nchunks
        return [together for together in range(2, min(most, nchunks) + 1) if nchunks % together == 0]

    def _most_rounds(self) -> int:
        """As many parts as leave the busiest rank room in a file for its sends and receives, each with its wait."""
        ends = Counter(rank for send in self.schedule.sends for rank in self.schedule.ends(send))
        return min(MOST_ROUNDS, MAX_NODES_PER_RANK // (2 * max(ends.values(), default=1)))

    def _multiply(self, instances: bool, spread: bool, turns: Sequence[str]) -> None:
        """Twice as many parts of a chunk and twice the channels, or one of them, for as long as that pays: a
        threadblock that is as slow as its link makes up for no wait, only others beside it do."""
        steps = [(1, 2)] * spread + [(2, 1)] * instances + [(2, 2), (4, 4)] * (spread and instances)
        paces = dict.fromkeys((self.best.choice.pace, *turns))
        before = None
        while before is not self.best and not self._good_enough:
            before = self.best
            now = before.choice
            wider = [replace(now, instances=now.instances * i, spread=now.spread * s) for i, s in steps]
            wider = [choice for choice in wider if max(choice.instances, choice.spread) <= MOST_PARTS]
            self._offer(replace(choice, pace=pace) for choice in wider for pace in paces)
            # The turns that are best for two are so for more, and a leap is only to find the way.
            paces, steps = {self.best.choice.pace: None}, steps[:3]

    def _simplify(self, choice: Choice, needs: Callable[[Program], int]) -> None:
        """Take a program that needs less and is as fast, also from the call, and that hangs at no size."""
        if self._spent + self._cost(choice) > MOST_SENDS_TO_TRY:
            return
        tried = self._try(choice)
        if (
            tried is not None
            and needs(tried.program) < needs(self.best.program)
            and tried.finish_us <= self.best.finish_us * (1 + SAME)
            and tried.from_call_us <= self.best.from_call_us * (1 + SAME)
            and self._finishes_at_any_size(tried.program)
        ):
            self._best = tried

    def _connections_across(self, program: Program) -> int:
        """Between hosts, each channel one: they are slow to set up and share the NICs."""
        topology = self.schedule.topology
        host = [topology.node_by_id[gpu].host for gpu in topology.gpus]
        return sum(
            tb.send >= 0 and host[rank] != host[tb.send] for rank, gpu in enumerate(program.gpus)
            for tb in gpu.threadblocks
        )  # fmt: skip

    def _finishes_at_any_size(self, program: Program) -> bool:
        """Whether it does where it is hardest: with every chunk in a slot of its own. When anything happens does not
        matter to that, as threadblocks take turns at nothing (Kahn 1974)."""
        nbytes = PROTOCOL[program.protocol].slot_bytes * program.chunks_per_size
        try:
            simulate(program, self.schedule.topology, nbytes)
        except Refused:
            return False
        return True

    def _offer(self, choices: Iterable[Choice]) -> bool:
        """Try one after the other until it keeps the schedule's time, keep the cheapest if it is worth its while, and
        say whether any fits. What would take too long is left out."""
        fits = False
        for choice in choices:
            if self._good_enough or self._spent + self._cost(choice) > MOST_SENDS_TO_TRY:
                continue
            tried = self._try(choice)
            if tried is not None:
                fits = True
                if tried.costs_less(self.best.cost_us * (1 - WORTHWHILE)):
                    self._best = tried
        return fits

    def _try(self, choice: Choice) -> _Tried | None:
        if choice in self._tried:
            return None
        self._tried.add(choice)
        self._spent += self._cost(choice)
        try:
            program = self.build(choice)
            finish_us = _simulated(program, self.schedule, neutral=True).finish_us
            return _Tried(choice, program, self.schedule, finish_us)
        except Refused as refusal:
            self._refusal = self._refusal or refusal
            return None

    def _cost(self, choice: Choice) -> int:
        parts = choice.instances * choice.rounds
        return len(self.schedule.sends) * parts * EFFORT[choice.pace] // choice.together

    @property
    def _good_enough(self) -> bool:
        """Whether the program is as fast as the schedule."""
        return self.best.finish_us <= self.schedule.finish_us * (1 + WORTHWHILE / 2)


def _simulated(program: Program, schedule: Schedule, neutral: bool) -> ProgramTiming:
    return simulate(program, schedule.topology, schedule.demand.size_bytes, neutral=neutral)


def _cost_us(tried: _Tried) -> float:
    return tried.cost_us


def _steps(program: Program) -> int:
    return sum(len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks)
