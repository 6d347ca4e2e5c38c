"""Pass: which actions of a rank must wait for which others, and no more than that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .actions import Action
from .placement import Layout, Place

#: For every threadblock of a rank the last of its actions that is over, by its place in the rank's order.
Clock = npt.NDArray[np.int64]


def order_hazards(actions: Sequence[Action], layout: Layout, modes: frozenset[str]) -> None:
    """Fill `after` of every action with the earlier actions of its rank that it conflicts with.

    Two accesses to one place conflict when one of them writes; in place, places that alias are one. Reads wait for
    the last write, writes for the last write and every read since.
    """
    for mode in sorted(modes):
        writer: dict[Place, Action] = {}
        readers: dict[Place, list[Action]] = defaultdict(list)
        for action in actions:
            reads = _memory(action, action.src, layout, mode)
            writes = _memory(action, action.dst, layout, mode)
            if action.type == "cpy" and reads == writes:  # onto itself
                writes = ()
            for place in reads:
                if place in writer:
                    _wait(action, writer[place])
                readers[place].append(action)
            for place in writes:
                if place in writer:
                    _wait(action, writer[place])
                for reader in readers.pop(place, ()):
                    _wait(action, reader)
                writer[place] = action


def _memory(action: Action, first: Place | None, layout: Layout, mode: str) -> Sequence[Place]:
    if first is None:
        return ()
    places = [first, *(Place(first.buffer, first.offset + k) for k in range(1, action.chunks))]
    return [layout.aliased(place, action.rank) for place in places] if mode == "inplace" else places


def _wait(action: Action, earlier: Action) -> None:
    if earlier is not action and earlier not in action.after:
        action.after.append(earlier)


def necessary_waits(
    actions: Sequence[Action],
    threadblock_of: Mapping[Action, Hashable],
    paced: Mapping[Action, Sequence[Action]] = MappingProxyType({}),
) -> dict[Action, Sequence[Action]]:
    """Which of its `after` and `paced` every action must really wait for, when each threadblock runs its actions in
    order.

    Transitive reduction over a rank's own happens-before. `actions` are in an order that waits agree with. Order
    through another rank does not count: no runtime promises it. O(actions · threadblocks).
    """
    moment = {action: i for i, action in enumerate(actions)}
    row = {block: i for i, block in enumerate(dict.fromkeys(map(threadblock_of.__getitem__, actions)))}
    # What is over, as each threadblock's last moment: when an action is, and for a threadblock's next one.
    over: dict[Action, Clock] = {}
    clocks: list[Clock] = [np.full(len(row), -1) for _ in row]
    after: dict[Action, Collection[Action]] = {action: action.after for action in actions}
    after.update((action, {*action.after, *more}) for action, more in paced.items())
    awaited = {earlier for before in after.values() for earlier in before}
    waits: dict[Action, Sequence[Action]] = {}
    for now, action in enumerate(actions):
        mine = row[threadblock_of[action]]
        clock = clocks[mine]
        needed = []
        before = after[action]
        if len(before) > 1:  # the latest covers most
            before = sorted(before, key=moment.__getitem__, reverse=True)
        for earlier in before:
            if clock[row[threadblock_of[earlier]]] < moment[earlier]:
                needed.append(earlier)
                np.maximum(clock, over[earlier], out=clock)
        clock[mine] = now
        if action in awaited:
            over[action] = clock.copy()
        waits[action] = needed
    return waits
