"""Lowering: a Schedule becomes a Program that a target's runtime loads, in small passes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from math import ceil

from ..collective.demand import GIVEN, Demand
from ..errors import InputError, Refused, unknown
from ..schedule.schedule import Schedule
from .actions import RankPlan, plan_actions
from .dependencies import order_hazards
from .fit import Fitter, check_transfers
from .instances import gathered, replicated, unrolled
from .merging import merge
from .nearest import Asked, nearest
from .pacing import COMPETING, PACES, shared_links, slow_links
from .placement import MODES, Layout
from .program import PROTOCOLS, Program
from .targets import CREDITS, MOST_SCRATCH_BYTES, TARGETS, Target, target_named
from .tune import Choice, Tuning

#: Every chunk should be at least one LL line pair: smaller ones have gone wrong in runtimes.
MIN_CHUNK_BYTES = 16
#: The files say their upper limit: 1 TiB, more than any buffer.
MAX_BYTES = 2**40
#: msccl keeps no more of a file's name.
MAX_NAME = 63
#: Protocols that run on every link (LL128 needs hardware that a topology does not tell).
AUTO_PROTOCOLS = ("Simple", "LL")


def lower(
    schedule: Schedule,
    target: str = "executor",
    *,
    mode: str | None = None,
    protocol: str = "auto",
    instances: int | None = None,
    spread: int | None = None,
    fuse: bool = True,
    unroll: bool = True,
    name: str | None = None,
) -> Program:
    """Lower `schedule` to a Program for `target`.

    `mode` is "both" (the default of targets that can), "inplace" or "outofplace"; `protocol` one of Simple, LL and
    LL128; `instances` cuts every chunk into so many parts that move side by side; `spread` multiplies the channels of
    every connection. What is not given (or protocol "auto": Simple or LL), and whether sends wait for their turn at a
    link, the program simulator chooses for the schedule's size. Every wait of a transfer, for data, for a place, for a
    link or for the transfer before it, is for one that arrives earlier in the schedule: so the program cannot
    deadlock with any number of credits. Unless `fuse` is false, what is passed on is received and sent in one step
    where the target has such, no time is lost, and the program is proved with the credits that its protocol has.
    Unless `unroll` is false, what fills several of a connection's slots may go in rounds; plans and messages have none.
    Raises `InputError` for an option that does not exist, `Refused` when no program fits the target.
    """
    check_names(target, mode, protocol)
    for option, value in (("spread", spread), ("instances", instances)):
        if value is not None and value < 1:
            raise InputError(f"{option} {value}; use 1 or more")
    limits = target_named(target)
    if schedule.multicasts():
        raise Refused(
            f"target {limits.name} cannot multicast, and this schedule has switches copy chunks; "
            "synthesize for the topology without multicast"
        )
    modes = _modes(mode, limits)
    _check_told(schedule.demand)
    _check_taken(schedule.demand.collective, limits, modes)
    name = name or f"teccl_{schedule.demand.collective}_{schedule.topology.nranks}"

    @cache
    def cut(together: int, rounds: int, staggered: bool, parts: int) -> Planned:
        return Planned(replicated(unrolled(gathered(schedule, together), rounds, staggered), parts), limits, modes)

    @cache
    def lowering(planned: Planned, merged: bool) -> Lowering:
        if merged and planned.merged is planned.plans:
            raise Refused(f"{schedule.demand.collective}: no neighbouring chunks go together")
        return Lowering(planned.schedule, limits, modes, name, merged, planned)

    def build(choice: Choice) -> Program:
        parts = (choice.together, choice.rounds, choice.staggered, choice.instances)
        return lowering(cut(*parts), choice.merged).program(choice)

    across_hosts = len(schedule.topology.hosts) > 1
    suspect = {"Simple"} if across_hosts and schedule.demand.collective in limits.suspect_simple else {}
    protocols = [each for each in AUTO_PROTOCOLS if each not in suspect] if protocol == "auto" else [protocol]
    needless = {"slow"} if not slow_links(schedule) else set()
    if not shared_links(schedule):
        needless |= set(COMPETING)
    paces = [pace for pace in PACES if pace not in needless]
    tuning = Tuning(schedule, build)
    try:
        fuse = fuse and limits.fused_receives
        with nothing_collected():
            return tuning.run(protocols, paces, instances, spread, fuse=fuse, unroll=unroll)
    except Refused as refusal:
        advice = nearest(schedule, Asked(target, mode, protocol, instances), lambda other: _fits(schedule, other))
        raise Refused(f"{refusal}; {advice}" if advice else str(refusal)) from None


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Passes make hundreds of thousands of objects that are needed to the end and have no cycles: to look through them
    again and again for such takes a collector a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _fits(schedule: Schedule, asked: Asked) -> bool:
    """Whether any program of the schedule does, fast or slow."""
    limits, parts = target_named(asked.target), asked.instances or 1
    protocol = AUTO_PROTOCOLS[0] if asked.protocol == "auto" else asked.protocol
    for merged in (False, True):
        try:
            modes = _modes(asked.mode, limits)
            _check_taken(schedule.demand.collective, limits, modes)
            lowering = Lowering(replicated(schedule, parts), limits, modes, "fits", merged)
            lowering.program(Choice(protocol, instances=parts, merged=merged))
            return True
        except Refused:
            continue
    return False


def check_names(target: str, mode: str | None, protocol: str) -> None:
    """Raise `InputError` for a target, mode or protocol that does not exist, before any work is done for it."""
    _modes(mode, target_named(target))
    if protocol not in (*PROTOCOLS, "auto"):
        raise unknown("protocol", protocol, ("auto", *PROTOCOLS))


def _modes(mode: str | None, target: Target) -> frozenset[str]:
    if mode is None:
        mode = "both" if target.both_modes else "outofplace"
    if mode == "both" and target.both_modes:
        return frozenset(MODES)
    if mode == "both":
        raise InputError(f"target {target.name} has a file for each mode; use mode inplace or outofplace")
    if mode not in MODES:
        raise unknown("mode", mode, ("both", *MODES) if target.both_modes else MODES)
    return frozenset({mode})


def _check_told(demand: Demand) -> None:
    """Refuse what no file can say, whatever the target."""
    if demand.groups:
        raise Refused("a program is for all its ranks: lower each group's part of the schedule")
    if demand.collective in GIVEN:
        raise Refused(
            f"no MSCCL XML can say what a demand of its own ({demand.collective}) wants; keep to its schedule"
        )


def _check_taken(collective: str, target: Target, modes: frozenset[str]) -> None:
    if collective not in target.collectives:
        takers = [other.name for other in TARGETS.values() if collective in other.collectives]
        others = f"; {' and '.join(takers)} would" if takers else ""
        raise Refused(f"target {target.name} does not take {collective}, but {', '.join(target.collectives)}{others}")
    if "inplace" in modes and collective in target.inplace_refused:
        raise Refused(f"target {target.name} never runs {collective} in place; use mode outofplace")


class Planned:
    """A schedule's plans, with what each action waits for."""

    def __init__(self, schedule: Schedule, target: Target, modes: frozenset[str]) -> None:
        self.schedule, self.modes, self.layout = schedule, modes, Layout(schedule.demand)
        self.plans = self._ordered(plan_actions(schedule, modes, fused=target.fused_receives))

    @cached_property
    def merged(self) -> list[RankPlan]:
        """The plans with neighbouring chunks as one, where they go together."""
        plans = merge(self.plans)
        return self._ordered(plans) if any(a.chunks > 1 for plan in plans for a in plan.actions) else self.plans

    def _ordered(self, plans: list[RankPlan]) -> list[RankPlan]:
        for plan in plans:
            order_hazards(plan.actions, self.layout, self.modes)
        return plans


class Lowering:
    """One schedule's way to a program: what is the same for every choice, and then the rest. What was `planned` for
    other choices need not be again."""

    def __init__(
        self,
        schedule: Schedule,
        target: Target,
        modes: frozenset[str],
        name: str,
        merged: bool = False,
        planned: Planned | None = None,
    ) -> None:
        self.schedule, self.target, self.modes, self.name = schedule, target, modes, name
        planned = planned or Planned(schedule, target, modes)
        self.plans, self.layout = planned.merged if merged else planned.plans, planned.layout
        check_transfers(self.plans)
        self.fitter = Fitter(schedule, self.plans, target, modes)

    def program(self, choice: Choice) -> Program:
        """Raises `Refused` when the target does not take it."""
        target, chunks = self.target, self.layout.chunks_per_loop
        scratch = max(plan.scratch_chunks for plan in self.plans)
        if target.fences_output_only and scratch and choice.protocol != "Simple":
            raise Refused(
                f"target {target.name} does not fence what threadblocks hand over in scratch under {choice.protocol}, "
                f"and this program needs {scratch} chunks of it; use protocol Simple"
            )
        fitted = self.fitter.fit(CREDITS[choice.protocol], choice.spread, choice.pace, choice.fused, choice.few)
        return Program(
            name=self.name[:MAX_NAME],
            collective=self.schedule.demand.collective,
            protocol=choice.protocol,
            nchannels=fitted.channels,
            nchunks=chunks,
            inplace="inplace" in self.modes,
            outofplace="outofplace" in self.modes,
            gpus=fitted.gpus,
            min_bytes=MIN_CHUNK_BYTES * chunks,
            max_bytes=self._max_bytes(scratch) + target.exclusive_max_bytes,
            target=target.name,
        )

    def _max_bytes(self, scratch_chunks: int) -> int:
        """The largest size that the program is for: no larger than this schedule's where that would have a runtime
        allocate much scratch at its start."""
        if not (self.target.scratch_for_max_bytes and scratch_chunks):
            return MAX_BYTES
        chunks = self.layout.chunks_per_loop
        own = ceil(self.schedule.demand.size_bytes / chunks) * chunks
        return min(MAX_BYTES, max(own, MOST_SCRATCH_BYTES * chunks // scratch_chunks))
