"""Pass: which actions of a rank must wait for which others, and no more than that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from .actions import Action
from .placement import Layout, Place


def order_hazards(actions: Sequence[Action], layout: Layout, modes: frozenset[str]) -> None:
    """Fill `after` of every action with the earlier actions of its rank that it conflicts with.

    Two accesses to one place conflict when one of them writes; in place, places that alias are one. Reads wait for
    the last write, writes for the last write and every read since.
    """
    for mode in sorted(modes):
        writer: dict[Place, Action] = {}
        readers: dict[Place, list[Action]] = defaultdict(list)
        for action in actions:
            reads = _memory(action.src, action.rank, layout, mode)
            writes = _memory(action.dst, action.rank, layout, mode)
            for place in reads:
                _wait(action, writer.get(place))
                readers[place].append(action)
            for place in writes:
                _wait(action, writer.get(place))
                for reader in readers.pop(place, ()):
                    _wait(action, reader)
                writer[place] = action


def _memory(place: Place | None, rank: int, layout: Layout, mode: str) -> tuple[Place, ...]:
    if place is None:
        return ()
    return (layout.aliased(place, rank) if mode == "inplace" else place,)


def _wait(action: Action, earlier: Action | None) -> None:
    if earlier is not None and earlier is not action and earlier not in action.after:
        action.after.append(earlier)


def reduce_waits(actions: Sequence[Action], threadblock_of: Mapping[Action, int]) -> None:
    """Drop every wait that follows from the others: transitive reduction over a rank's own happens-before.

    `actions` are in time order; a threadblock runs its own in that order. Order through another rank does not
    count: no runtime promises it. O(actions · threadblocks).
    """
    moment = {action: i for i, action in enumerate(actions)}
    index: dict[Action, int] = {}  # the action's place in its threadblock
    done: dict[Action, dict[int, int]] = {}  # action → what is over when it is: the last action of each threadblock
    last: dict[int, Action] = {}
    for action in actions:
        tb = threadblock_of[action]
        index[action] = index[last[tb]] + 1 if tb in last else 0
        clock = dict(done[last[tb]]) if tb in last else {}
        needed = []
        for earlier in sorted(action.after, key=moment.__getitem__, reverse=True):  # the latest covers most
            if clock.get(threadblock_of[earlier], -1) >= index[earlier]:
                continue
            needed.append(earlier)
            for other, place in done[earlier].items():
                clock[other] = max(clock.get(other, -1), place)
        clock[tb] = index[action]
        action.after = needed
        done[action] = clock
        last[tb] = action
