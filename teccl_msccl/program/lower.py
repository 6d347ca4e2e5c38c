"""Lowering: a Schedule becomes a Program that a target's runtime loads, in small passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from .actions import Action, RankPlan, merge_copies, plan_actions
from .channels import ChannelPlan, Connection, Transfer, assign_channels, narrowed, widths_for
from .dependencies import order_hazards, reduce_waits
from .placement import MODES, Layout, Place
from .program import PROTOCOLS, Gpu, Program, Step, Threadblock
from .simulate import simulate
from .targets import CREDITS, MAX_COUNT, MAX_DEPENDENCY_TB, MAX_NODES_PER_RANK, Target, target_named

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
#: All of a rank's threadblocks must run at once; the smallest GPU that runtimes serve has this many SMs (V100).
MOST_RESIDENT_THREADBLOCKS = 80
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
    demand = schedule.demand
    if demand.collective not in limits.collectives:
        raise Refused(f"target {target} does not take {demand.collective}; it takes {', '.join(limits.collectives)}")
    name = name or f"teccl_{demand.collective}_{schedule.topology.nranks}"
    protocols = AUTO_PROTOCOLS if protocol == "auto" else (protocol,)
    programs = [_fastest_spread(schedule, limits, modes, each, spread, name) for each in protocols]
    return min(programs, key=lambda program: _simulated_us(program, schedule)) if len(programs) > 1 else programs[0]


def _fastest_spread(
    schedule: Schedule, target: Target, modes: frozenset[str], protocol: str, spread: int | None, name: str
) -> Program:
    """Double the channels of every connection for as long as the simulated program gains by it."""
    best = _lower_once(schedule, target, modes, protocol, spread or 1, name)
    if spread is not None or len(schedule.sends) > MOST_SENDS_TO_TUNE:
        return best
    best_us = _simulated_us(best, schedule)
    for wider in SPREADS:
        try:
            program = _lower_once(schedule, target, modes, protocol, wider, name)
        except Refused:
            break
        time_us = _simulated_us(program, schedule)
        if time_us > best_us * (1 - WORTHWHILE):
            break
        best, best_us = program, time_us
    return best


def _simulated_us(program: Program, schedule: Schedule) -> float:
    timing = simulate(program, schedule.topology, schedule.demand.size_bytes)
    return timing.finish_us + timing.launch_us


def _lower_once(
    schedule: Schedule, target: Target, modes: frozenset[str], protocol: str, spread: int, name: str
) -> Program:
    """The passes in their order: actions, hazards, channels, threadblocks and steps."""
    demand = schedule.demand
    plans = plan_actions(schedule, modes)
    for plan in plans:
        order_hazards(plan.actions, Layout(demand), modes)
    gpus, channels = _fit(schedule, plans, target, CREDITS[protocol], spread)
    return Program(
        name=name,
        collective=demand.collective,
        protocol=protocol,
        nchannels=channels.count,
        nchunks=demand.chunks_per_size,
        inplace="inplace" in modes,
        outofplace="outofplace" in modes,
        gpus=gpus,
        min_bytes=MIN_CHUNK_BYTES * demand.chunks_per_size,
        max_bytes=MAX_BYTES,
        target=target.name,
    )


def _modes(mode: str, target: Target) -> frozenset[str]:
    if mode == "both" and target.both_modes:
        return frozenset(MODES)
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not one of target {target.name}'s; use both, inplace or outofplace")
    return frozenset({mode})


def _fit(
    schedule: Schedule, plans: Sequence[RankPlan], target: Target, credits: int, spread: int
) -> tuple[tuple[Gpu, ...], ChannelPlan]:
    """Widen connections until they keep the schedule's pace and the target takes every threadblock."""
    layout = Layout(schedule.demand)
    transfers = [
        Transfer(action.connection, action.nbytes, action.start_us, action.arrival_us)
        for plan in plans
        for action in plan.actions
        if action.type == "s" and action.connection is not None
    ]
    widths = widths_for(transfers, credits, schedule.topology.threadblock_GBps, schedule.finish_us)
    copiers = _copiers(schedule, plans)
    most = MOST_RESIDENT_THREADBLOCKS - copiers
    widths = narrowed({connection: width * spread for connection, width in widths.items()}, most)
    while True:
        channels = assign_channels(widths, target)
        built = [_build_rank(plan, channels, copiers, target) for rank, plan in enumerate(plans)]
        crowded = {connection for ranks in built for connection in ranks.crowded}
        if not crowded:
            break
        for connection in crowded:
            widths[connection] += 1
    gpus = tuple(
        Gpu(*layout.sizes(rank), plan.scratch_chunks, ranks.threadblocks)
        for rank, (plan, ranks) in enumerate(zip(plans, built, strict=True))
    )
    _check_size(gpus, target)
    return gpus, channels


@dataclass(frozen=True)
class _Built:
    threadblocks: tuple[Threadblock, ...]
    crowded: frozenset[Connection]


#: A threadblock's key: what it does, its peer and its channel; local ones count up.
_Key = tuple[str, int, int]


def _copiers(schedule: Schedule, plans: Sequence[RankPlan]) -> int:
    """Threadblocks that share a rank's local copies, so that what waits for them waits but briefly."""
    threadblock_GBps = schedule.topology.threadblock_GBps
    if not threadblock_GBps or schedule.finish_us <= 0:
        return 1
    copied = max(sum(action.nbytes for action in plan.actions if action.connection is None) for plan in plans)
    alone_us = copied / (threadblock_GBps / 2 * 1e3)
    return max(1, min(MOST_COPYING_THREADBLOCKS, ceil(alone_us / (COPYING_SHARE * schedule.finish_us))))


def _build_rank(plan: RankPlan, channels: ChannelPlan, copiers: int, target: Target) -> _Built:
    """One rank's threadblocks: one per connection and channel, and as many for local copies as they need."""
    actions, sizes = _with_merged_copies(plan.actions)
    keys = [_key(action, channels) for action in actions]
    keys = _spread_copies(keys, copiers, target)
    members: dict[_Key, list[Action]] = defaultdict(list)
    for action, key in zip(actions, keys, strict=True):
        members[key].append(action)
    order = _threadblock_order(members)
    ids = {key: i for i, key in enumerate(order)}
    threadblock_of = {action: ids[key] for action, key in zip(actions, keys, strict=True)}
    reduce_waits(actions, threadblock_of)
    steps = _steps([members[key] for key in order], threadblock_of, sizes)
    threadblocks = tuple(_threadblock(key, steps[i]) for key, i in ids.items())
    crowded = {
        members[key][0].connection
        for key, i in ids.items()
        if len(steps[i]) > target.max_steps and members[key][0].connection is not None
    }
    return _Built(threadblocks, frozenset(c for c in crowded if c is not None))


def _with_merged_copies(actions: Sequence[Action]) -> tuple[list[Action], dict[Action, int]]:
    """Local copies in the order in which they are waited for; neighbours that nobody waits for become one."""
    copies = [action for action in actions if action.connection is None]
    rest = [action for action in actions if action.connection is not None]
    first_use: dict[Action, int] = {}
    for moment, action in enumerate(rest):
        for earlier in action.after:
            first_use.setdefault(earlier, moment)
    used = sorted((copy for copy in copies if copy in first_use), key=first_use.__getitem__)
    sizes = dict.fromkeys(used, 1)
    for action, chunks in merge_copies((copy for copy in copies if copy not in first_use), MAX_COUNT):
        sizes[action] = chunks
    return [*sizes, *rest], sizes


def _key(action: Action, channels: ChannelPlan) -> _Key:
    if action.connection is None:
        return ("local", 0, 0)
    src, dst, _ = action.connection
    channel = channels.channel(action.connection, action.position)
    return ("send", dst, channel) if action.type == "s" else ("recv", src, channel)


def _spread_copies(keys: Sequence[_Key], copiers: int, target: Target) -> list[_Key]:
    """Local copies take turns at `copiers` threadblocks, or at as many as hold them."""
    copies = sum(1 for key in keys if key[0] == "local")
    lanes = max(min(copiers, copies), ceil(copies / target.max_steps))
    turns = count()
    return [("local", next(turns) % lanes, 0) if key[0] == "local" else key for key in keys]


def _threadblock_order(members: Mapping[_Key, Sequence[Action]]) -> list[_Key]:
    """Threadblocks that others wait for come first: a dependency can only name low ids."""
    waited = {id(earlier) for actions in members.values() for action in actions for earlier in action.after}
    return sorted(members, key=lambda key: (not any(id(action) in waited for action in members[key]), key))


def _steps(
    blocks: Sequence[Sequence[Action]], threadblock_of: Mapping[Action, int], sizes: Mapping[Action, int]
) -> list[tuple[Step, ...]]:
    """Number the steps: an action with k waits takes k − 1 nops before it, one wait each."""
    position: dict[Action, int] = {}
    for block in blocks:
        steps = 0
        for action in block:
            steps += max(0, len(action.after) - 1)
            position[action] = steps
            steps += 1
    waited = {earlier for block in blocks for action in block for earlier in action.after}
    return [
        tuple(step for action in block for step in _action_steps(action, threadblock_of, position, waited, sizes))
        for block in blocks
    ]


def _action_steps(
    action: Action,
    threadblock_of: Mapping[Action, int],
    position: Mapping[Action, int],
    waited: set[Action],
    sizes: Mapping[Action, int],
) -> list[Step]:
    waits = [(threadblock_of[earlier], position[earlier]) for earlier in action.after] or [(-1, -1)]
    src = action.src or action.dst or Place("i", 0)
    dst = action.dst or action.src or Place("o", 0)
    nops = [Step("nop", depid=tb, deps=step) for tb, step in waits[:-1]]
    tb, step = waits[-1]
    return [
        *nops,
        Step(
            type=action.type,
            srcbuf=src.buffer,
            srcoff=src.offset,
            dstbuf=dst.buffer,
            dstoff=dst.offset,
            cnt=sizes.get(action, 1),
            depid=tb,
            deps=step,
            hasdep=action in waited,
        ),
    ]


def _threadblock(key: _Key, steps: tuple[Step, ...]) -> Threadblock:
    kind, peer, channel = key
    return Threadblock(
        send=peer if kind == "send" else -1, recv=peer if kind == "recv" else -1, chan=channel, steps=steps
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
        highest = max((step.depid for tb in gpu.threadblocks for step in tb.steps), default=-1)
        if highest > MAX_DEPENDENCY_TB:
            raise Refused(f"rank {rank} waits for threadblock {highest} and runtimes stop at {MAX_DEPENDENCY_TB}")
