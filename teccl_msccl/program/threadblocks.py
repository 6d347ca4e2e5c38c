"""Pass: a rank's actions become threadblocks and their steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .actions import Action
from .channels import ChannelPlan, Connection
from .copies import in_order_of_use, share_out
from .dependencies import necessary_waits
from .placement import Place
from .program import Step, Threadblock
from .targets import Target


@dataclass(frozen=True)
class BuiltRank:
    """One rank's threadblocks; `crowded` has the connections with more steps in a threadblock than the target takes,
    and how many."""

    threadblocks: tuple[Threadblock, ...]
    crowded: Mapping[Connection, int]


#: What a threadblock does, with whom and on which channel; of local ones, the chunks a step copies, and a number.
_Key = tuple[str, int, int]
_Waits = Mapping[Action, Sequence[Action]]


def build_rank(actions: Sequence[Action], channels: ChannelPlan, copiers: int, target: Target) -> BuiltRank:
    """One threadblock per connection, direction and channel, and `copiers` for local copies (more if they must).

    `actions` are in time order, their hazards in `after`.
    """
    actions, sizes = in_order_of_use(actions)
    home = share_out(sizes, copiers, target.max_steps)
    keys = {action: _transfer_key(action, channels) or ("local", *home[action]) for action in actions}
    members: dict[_Key, list[Action]] = defaultdict(list)
    for action, key in keys.items():
        members[key].append(action)
    waits = necessary_waits(actions, keys)
    waited = {earlier for needed in waits.values() for earlier in needed}
    blocks = {key: members[key] for key in _order(members, waited)}
    steps = _steps(blocks, waits, waited, sizes)
    crowded: dict[Connection, int] = {}
    for key, (first, *_) in blocks.items():
        if len(steps[key]) > target.max_steps and first.connection is not None:
            crowded[first.connection] = max(crowded.get(first.connection, 0), len(steps[key]))
    return BuiltRank(tuple(_threadblock(key, steps[key]) for key in blocks), crowded)


def _transfer_key(action: Action, channels: ChannelPlan) -> _Key | None:
    if action.connection is None:
        return None
    src, dst, _ = action.connection
    channel = channels.channel(action.connection, action.position)
    return ("send", dst, channel) if action.type == "s" else ("recv", src, channel)


def _order(members: Mapping[_Key, Sequence[Action]], waited: set[Action]) -> list[_Key]:
    """Threadblocks that others wait for come first: a dependency can only name low ids."""
    return sorted(members, key=lambda key: (waited.isdisjoint(members[key]), key))


def _steps(
    blocks: Mapping[_Key, Sequence[Action]], waits: _Waits, waited: set[Action], sizes: Mapping[Action, int]
) -> dict[_Key, tuple[Step, ...]]:
    """Every threadblock's steps: an action with k waits takes k − 1 nops before it, one wait each."""
    place: dict[Action, tuple[int, int]] = {}  # threadblock, step
    for tb, block in enumerate(blocks.values()):
        steps = 0
        for action in block:
            steps += max(0, len(waits[action]) - 1)
            place[action] = (tb, steps)
            steps += 1
    return {
        key: tuple(
            step
            for action in block
            for step in _action_steps(
                action, [place[earlier] for earlier in waits[action]], action in waited, sizes.get(action, 1)
            )
        )
        for key, block in blocks.items()
    }


def _action_steps(action: Action, waits: Sequence[tuple[int, int]], waited: bool, chunks: int) -> list[Step]:
    src = action.src or action.dst or Place("i", 0)
    dst = action.dst or action.src or Place("o", 0)
    *before, (depid, deps) = waits or [(-1, -1)]
    step = Step(action.type, *src, *dst, cnt=chunks, depid=depid, deps=deps, hasdep=waited)
    return [*(Step("nop", depid=tb, deps=at) for tb, at in before), step]


def _threadblock(key: _Key, steps: tuple[Step, ...]) -> Threadblock:
    match key:
        case ("send", peer, channel):
            return Threadblock(send=peer, recv=-1, chan=channel, steps=steps)
        case ("recv", peer, channel):
            return Threadblock(send=-1, recv=peer, chan=channel, steps=steps)
        case _:
            return Threadblock(send=-1, recv=-1, chan=0, steps=steps)
