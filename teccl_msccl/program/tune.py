"""Tuning: of the programs that a schedule can become, the one that the program simulator takes for fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import Refused
from ..schedule.schedule import Schedule
from .program import Program
from .protocol import PROTOCOL, slicing
from .simulate import simulate
from .targets import MAX_NODES_PER_RANK

#: Multiples of the instances and of the channels that are tried.
MULTIPLES = (2, 4, 8)
#: More parts make sizes too coarse: a size must be a multiple of all parts.
MOST_INSTANCES = 64
#: What a larger program has to gain.
WORTHWHILE = 0.02
#: Schedules with more sends, cut into instances, are too large to be tried.
MOST_SENDS_TO_TUNE = 20_000


@dataclass(frozen=True)
class Choice:
    """What is tuned: the protocol, whether sends wait for their turn at a link, the parts that every chunk is cut
    into, and the multiple of the channels that keep the pace."""

    protocol: str
    in_turn: bool = False
    instances: int = 1
    spread: int = 1


@dataclass(frozen=True)
class _Tried:
    choice: Choice
    program: Program
    time_us: float


class Tuning:
    """The fastest program so far. `build` makes one of a choice, or raises `Refused`."""

    def __init__(self, schedule: Schedule, build: Callable[[Choice], Program]) -> None:
        self.schedule, self.build = schedule, build
        self._best: _Tried | None = None
        self._refusal = Refused(f"{schedule.demand.collective}: nothing to lower")

    def run(self, protocols: Sequence[str], turns: bool, instances: int | None, spread: int | None) -> Program:
        """Choose one thing after the other: the protocol, turns at links (where `turns` make a difference), and
        instances and channels where they are not given. Raises `Refused` when nothing fits."""
        first = [Choice(protocol, False, instances or 1, spread or 1) for protocol in protocols]
        if self._too_large(instances or 1):
            return self._first(
                replace(choice, in_turn=in_turn)
                for choice in first
                for in_turn in ((True, False) if turns else (False,))
            )
        self._offer(first)
        best = self.best
        if turns:
            self._offer([replace(best.choice, in_turn=True)])
        if instances is None:
            self._unroll(turns)
            if self.schedule.topology.threadblock_GBps:
                self._multiply(lambda choice, by: replace(choice, instances=choice.instances * by))
        if spread is None:
            self._multiply(lambda choice, by: replace(choice, spread=choice.spread * by))
        return self.best.program

    @property
    def best(self) -> _Tried:
        """Raises the last refusal where nothing was fit."""
        if self._best is None:
            raise self._refusal
        return self._best

    def _unroll(self, turns: bool) -> None:
        """Where a chunk fills several slots, and the runtime would loop over the program, cut it into as many parts:
        the loops know nothing of turns, nor of when their successors may start. Half as many where that does not fit,
        and so on."""
        choice = self.best.choice
        chunk_bytes = max((chunk.bytes for chunk in self.schedule.demand.chunks), default=0.0)
        number = min(slicing(chunk_bytes, PROTOCOL[choice.protocol]).iterations, self._most_instances())
        while number > 1:
            parts = replace(choice, instances=number)
            if not self._too_large(number) and self._offer([replace(parts, in_turn=True), parts] if turns else [parts]):
                break
            number = -(-number // 2)

    def _most_instances(self) -> int:
        """As many parts as leave the busiest rank room in a file for its sends and receives, each with its wait."""
        ends = Counter(rank for send in self.schedule.sends for rank in self.schedule.ends(send))
        return min(MOST_INSTANCES, MAX_NODES_PER_RANK // (2 * max(ends.values(), default=1)))

    def _multiply(self, larger: Callable[[Choice, int], Choice]) -> None:
        """Twice as much of something, for as long as that pays."""
        choice = self.best.choice
        for by in MULTIPLES:
            more = larger(choice, by)
            if self._too_large(more.instances) or not self._offer([more]) or self.best.choice != more:
                break

    def _offer(self, choices: Iterable[Choice]) -> bool:
        """Try all of them, keep the best if it is worth its while, and say whether any fits."""
        fits = False
        for choice in choices:
            program = self._built(choice)
            if program is None:
                continue
            fits = True
            timing = simulate(program, self.schedule.topology, self.schedule.demand.size_bytes)
            time_us = timing.finish_us + timing.launch_us
            if self._best is None or time_us < self._best.time_us * (1 - WORTHWHILE):
                self._best = _Tried(choice, program, time_us)
        return fits

    def _first(self, choices: Iterable[Choice]) -> Program:
        for choice in choices:
            if (program := self._built(choice)) is not None:
                return program
        raise self._refusal

    def _built(self, choice: Choice) -> Program | None:
        try:
            return self.build(choice)
        except Refused as refusal:
            self._refusal = refusal
            return None

    def _too_large(self, instances: int) -> bool:
        return len(self.schedule.sends) * instances > MOST_SENDS_TO_TUNE
