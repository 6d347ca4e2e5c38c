"""Lowering: a Schedule becomes a Program that a target's runtime loads, in small passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError, Refused
from ..schedule.schedule import Schedule
from .actions import Action, RankPlan, merge_copies, plan_actions
from .channels import ChannelPlan, Connection, assign_channels, widths_in_flight
from .dependencies import order_hazards, reduce_waits
from .placement import MODES, Layout, Place
from .program import PROTOCOLS, Gpu, Program, Step, Threadblock
from .targets import CREDITS, MAX_COUNT, MAX_DEPENDENCY_TB, MAX_NODES_PER_RANK, Target, target_named

#: Every chunk should be at least one LL line pair: smaller ones have gone wrong in runtimes.
MIN_CHUNK_BYTES = 16
#: The files say their upper limit: 1 TiB, more than any buffer.
MAX_BYTES = 2**40


def lower(
    schedule: Schedule,
    target: str = "executor",
    *,
    mode: str = "both",
    protocol: str = "Simple",
    name: str | None = None,
) -> Program:
    """Lower `schedule` to a Program for `target`.

    `mode` is "both", "inplace" or "outofplace"; `protocol` one of Simple, LL and LL128. Sends and receives get
    threadblocks of their own, and every wait of a transfer, for data, for a place or for the transfer before it, is
    for one that arrives earlier in the schedule: so the program cannot deadlock with any number of credits.
    Raises `InputError` for an option that does not exist, `Refused` when no program fits the target.
    """
    limits = target_named(target)
    modes = _modes(mode, limits)
    if protocol not in PROTOCOLS:
        raise InputError(f"unknown protocol {protocol!r}; use {', '.join(PROTOCOLS)}")
    demand = schedule.demand
    if demand.collective not in limits.collectives:
        raise Refused(f"target {target} does not take {demand.collective}; it takes {', '.join(limits.collectives)}")
    plans = plan_actions(schedule, modes)
    layout = Layout(demand)
    for plan in plans:
        order_hazards(plan.actions, layout, modes)
    gpus, channels = _fit(plans, layout, limits, CREDITS[protocol])
    return Program(
        name=name or f"teccl_{demand.collective}_{schedule.topology.nranks}",
        collective=demand.collective,
        protocol=protocol,
        nchannels=channels.count,
        nchunks=demand.chunks_per_size,
        inplace="inplace" in modes,
        outofplace="outofplace" in modes,
        gpus=gpus,
        min_bytes=MIN_CHUNK_BYTES * demand.chunks_per_size,
        max_bytes=MAX_BYTES,
        target=target,
    )


def _modes(mode: str, target: Target) -> frozenset[str]:
    if mode == "both" and target.both_modes:
        return frozenset(MODES)
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not one of target {target.name}'s; use both, inplace or outofplace")
    return frozenset({mode})


def _fit(
    plans: Sequence[RankPlan], layout: Layout, target: Target, credits: int
) -> tuple[tuple[Gpu, ...], ChannelPlan]:
    """Widen connections until the schedule's transfers fit in flight and the target takes every threadblock."""
    sends = [action for plan in plans for action in plan.actions if action.type == "s"]
    widths = widths_in_flight(((a.connection, a.start_us, a.arrival_us) for a in sends if a.connection), credits)
    while True:
        channels = assign_channels(widths, target)
        built = [_build_rank(rank, plan, channels, target) for rank, plan in enumerate(plans)]
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


def _build_rank(rank: int, plan: RankPlan, channels: ChannelPlan, target: Target) -> _Built:
    """One rank's threadblocks: one per connection and channel, and as many for local copies as they fill."""
    actions, sizes = _with_merged_copies(plan.actions)
    keys = [_key(action, channels) for action in actions]
    keys = _spread_copies(keys, target)
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
    """Neighbouring initial copies become one; waits on a member become waits on the whole."""
    first = [action for action in actions if action.connection is None]
    rest = [action for action in actions if action.connection is not None]
    sizes: dict[Action, int] = {}
    leader: dict[Action, Action] = {}
    for action, count, members in merge_copies(first, MAX_COUNT):
        sizes[action] = count
        leader.update(dict.fromkeys(members, action))
    for action in rest:
        action.after = list(dict.fromkeys(leader.get(earlier, earlier) for earlier in action.after))
    return [*sizes, *rest], sizes


def _key(action: Action, channels: ChannelPlan) -> _Key:
    if action.connection is None:
        return ("local", 0, 0)
    src, dst, _ = action.connection
    channel = channels.channel(action.connection, action.position)
    return ("send", dst, channel) if action.type == "s" else ("recv", src, channel)


def _spread_copies(keys: Sequence[_Key], target: Target) -> list[_Key]:
    """Local copies go to as few threadblocks as hold them."""
    spread, copies = [], 0
    for key in keys:
        if key[0] == "local":
            spread.append(("local", copies // target.max_steps, 0))
            copies += 1
        else:
            spread.append(key)
    return spread


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
