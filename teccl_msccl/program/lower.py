"""Lowering: a Schedule becomes a Program that a target's runtime loads, in small passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil

from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from .actions import RankPlan, plan_actions
from .channels import ChannelPlan, Connection, Transfer, assign_channels, halved, narrowed, widths_for
from .dependencies import order_hazards
from .placement import MODES, Layout
from .program import PROTOCOLS, Gpu, Program
from .simulate import simulate
from .targets import CREDITS, FEWEST_SMS, MAX_DEPENDENCY_TB, MAX_NODES_PER_RANK, Target, target_named
from .threadblocks import build_rank

#: Every chunk should be at least one LL line pair: smaller ones have gone wrong in runtimes.
MIN_CHUNK_BYTES = 16
#: The files say their upper limit: 1 TiB, more than any buffer.
MAX_BYTES = 2**40
#: Protocols that run on every link (LL128 needs hardware that a topology does not tell).
AUTO_PROTOCOLS = ("Simple", "LL")
#: Multiples of the channels that are tried, what a wider program has to gain, and schedules too large to try more.
SPREADS = (2, 4, 8)
WORTHWHILE = 0.02
MOST_SENDS_TO_TUNE = 20_000
#: Local copies that others wait for may take this share of the schedule's time.
COPYING_SHARE = 0.2
MOST_COPYING_THREADBLOCKS = 8


def lower(
    schedule: Schedule,
    target: str = "executor",
    *,
    mode: str = "both",
    protocol: str = "auto",
    spread: int | None = None,
    name: str | None = None,
) -> Program:
    """Lower `schedule` to a Program for `target`.

    `mode` is "both", "inplace" or "outofplace"; `protocol` one of Simple, LL and LL128; `spread` multiplies the
    channels of every connection. With protocol "auto" (Simple or LL) or without a spread, the program simulator
    chooses for the schedule's size. Sends and receives get threadblocks of their own, and every wait of a transfer,
    for data, for a place or for the transfer before it, is for one that arrives earlier in the schedule: so the
    program cannot deadlock with any number of credits. Raises `InputError` for an option that does not exist,
    `Refused` when no program fits the target.
    """
    if protocol not in (*PROTOCOLS, "auto"):
        raise InputError(f"unknown protocol {protocol!r}; use auto, {', '.join(PROTOCOLS)}")
    if spread is not None and spread < 1:
        raise InputError(f"spread {spread}; use 1 or more")
    limits = target_named(target)
    modes = _modes(mode, limits)
    collective = schedule.demand.collective
    if collective not in limits.collectives:
        raise Refused(f"target {target} does not take {collective}; it takes {', '.join(limits.collectives)}")
    lowering = _Lowering(schedule, limits, modes, name or f"teccl_{collective}_{schedule.topology.nranks}")
    protocols = AUTO_PROTOCOLS if protocol == "auto" else (protocol,)
    programs = [lowering.fastest(each, spread) for each in protocols]
    return min(programs, key=lowering.simulated_us) if len(programs) > 1 else programs[0]


def _modes(mode: str, target: Target) -> frozenset[str]:
    if mode == "both" and target.both_modes:
        return frozenset(MODES)
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not one of target {target.name}'s; use both, inplace or outofplace")
    return frozenset({mode})


class _Lowering:
    """One schedule's way to a program: what is the same for every protocol and spread, and then the rest."""

    def __init__(self, schedule: Schedule, target: Target, modes: frozenset[str], name: str) -> None:
        self.schedule, self.target, self.modes, self.name = schedule, target, modes, name
        self.layout = Layout(schedule.demand)
        self.plans = plan_actions(schedule, modes)
        _check_transfers(self.plans)
        for plan in self.plans:
            order_hazards(plan.actions, self.layout, modes)
        self.transfers = [
            Transfer(action.connection, action.nbytes, action.start_us, action.arrival_us)
            for plan in self.plans
            for action in plan.actions
            if action.type == "s" and action.connection is not None
        ]

    def fastest(self, protocol: str, spread: int | None) -> Program:
        """Without a spread, double the channels of every connection for as long as the simulated program gains by
        it."""
        best = self.program(protocol, spread or 1)
        if spread is not None or len(self.transfers) > MOST_SENDS_TO_TUNE:
            return best
        best_us = self.simulated_us(best)
        for wider in SPREADS:
            try:
                program = self.program(protocol, wider)
            except Refused:
                break
            time_us = self.simulated_us(program)
            if time_us > best_us * (1 - WORTHWHILE):
                break
            best, best_us = program, time_us
        return best

    def simulated_us(self, program: Program) -> float:
        timing = simulate(program, self.schedule.topology, self.schedule.demand.size_bytes)
        return timing.finish_us + timing.launch_us

    def program(self, protocol: str, spread: int) -> Program:
        gpus, channels = self._fit(CREDITS[protocol], spread)
        return Program(
            name=self.name,
            collective=self.schedule.demand.collective,
            protocol=protocol,
            nchannels=channels.count,
            nchunks=self.layout.chunks_per_loop,
            inplace="inplace" in self.modes,
            outofplace="outofplace" in self.modes,
            gpus=gpus,
            min_bytes=MIN_CHUNK_BYTES * self.layout.chunks_per_loop,
            max_bytes=MAX_BYTES,
            target=self.target.name,
        )

    def _fit(self, credits: int, spread: int) -> tuple[tuple[Gpu, ...], ChannelPlan]:
        """As many channels as keep the schedule's pace and a GPU can run at once; half of that, and so on, until the
        target takes the program."""
        schedule = self.schedule
        pace = widths_for(self.transfers, credits, schedule.topology.threadblock_GBps, schedule.finish_us)
        most = FEWEST_SMS - self.copiers
        widths = narrowed({connection: width * spread for connection, width in pace.items()}, most)
        while True:
            try:
                return self._build(widths)
            except Refused:
                if max(widths.values(), default=1) == 1:
                    raise
            widths = halved(widths)

    def _build(self, widths: Mapping[Connection, int]) -> tuple[tuple[Gpu, ...], ChannelPlan]:
        """Threadblocks on `widths` channels per connection, or on more where the target's limit of steps asks for it.
        Raises `Refused` when the target does not take them."""
        widths = dict(widths)
        while True:
            channels = assign_channels(widths, self.target)
            built = [build_rank(plan.actions, channels, self.copiers, self.target) for plan in self.plans]
            crowded = [rank.crowded for rank in built if rank.crowded]
            if not crowded:
                break
            for connection, steps in (item for connections in crowded for item in connections.items()):
                # Waits move with the steps, so how many channels suffice shows only when they are there.
                fewest = ceil(len(channels.of[connection]) * steps / self.target.max_steps)
                widths[connection] = max(widths[connection], fewest)
        gpus = tuple(
            Gpu(*self.layout.sizes(rank), plan.scratch_chunks, built[rank].threadblocks)
            for rank, plan in enumerate(self.plans)
        )
        _check_size(gpus, self.target)
        return gpus, channels

    @cached_property
    def copiers(self) -> int:
        """Threadblocks that share a rank's local copies, so that what waits for them waits but briefly."""
        threadblock_GBps, finish_us = self.schedule.topology.threadblock_GBps, self.schedule.finish_us
        if not threadblock_GBps or finish_us <= 0:
            return 1
        copied = max(sum(action.nbytes for action in plan.actions if action.connection is None) for plan in self.plans)
        alone_us = copied / (threadblock_GBps / 2 * 1e3)
        return max(1, min(MOST_COPYING_THREADBLOCKS, ceil(alone_us / (COPYING_SHARE * finish_us))))


def _check_transfers(plans: Sequence[RankPlan]) -> None:
    """Refuse early what no channels and threadblocks can make fit."""
    for rank, plan in enumerate(plans):
        transfers = sum(action.connection is not None for action in plan.actions)
        nodes = 1 + len(plans) + transfers
        if nodes > MAX_NODES_PER_RANK:
            raise Refused(
                f"rank {rank} sends and receives {transfers} times, which with 1 algo and {len(plans)} gpu elements "
                f"makes {nodes} nodes, and a file may hold {MAX_NODES_PER_RANK} a rank; synthesize with fewer --chunks"
            )


def _check_size(gpus: Sequence[Gpu], target: Target) -> None:
    """Refuse, with the arithmetic, what the target cannot hold."""
    for rank, gpu in enumerate(gpus):
        steps = sum(len(tb.steps) for tb in gpu.threadblocks)
        nodes = 1 + len(gpus) + len(gpu.threadblocks) + steps
        if nodes > MAX_NODES_PER_RANK:
            raise Refused(
                f"rank {rank} needs {nodes} nodes ({len(gpu.threadblocks)} threadblocks, {steps} steps) and a file may "
                f"hold {MAX_NODES_PER_RANK} a rank; synthesize with fewer --chunks"
            )
        if len(gpu.threadblocks) > target.max_threadblocks:
            raise Refused(
                f"rank {rank} needs {len(gpu.threadblocks)} threadblocks and target {target.name} takes "
                f"{target.max_threadblocks}; synthesize with fewer --chunks"
            )
        waited = {step.depid for tb in gpu.threadblocks for step in tb.steps if step.depid >= 0}
        if max(waited, default=-1) > MAX_DEPENDENCY_TB:
            raise Refused(
                f"others wait for {len(waited)} of rank {rank}'s threadblocks and runtimes can name "
                f"{MAX_DEPENDENCY_TB + 1}; synthesize with fewer --chunks, or for fewer GPUs"
            )
