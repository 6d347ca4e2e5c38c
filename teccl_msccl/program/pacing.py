"""Pass: sends of one rank that share a link keep the schedule's order there.

A schedule gives a link to one transfer after another. Threadblocks of a rank that send over the same link (to a switch,
or to a NIC) know nothing of each other, and a runtime serves them as they come; so later sends delay earlier ones,
and others beyond the switch that wait for those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from .actions import Action


def waits_for_links(actions: Sequence[Action], at_once: Mapping[int, int]) -> Mapping[Action, Sequence[Action]]:
    """For every send of a rank those it waits for, that no more than `at_once` of them compete for a link (id): on
    each link of its path the one so many places before it in the schedule's order, of those that arrive earlier.

    `actions` are in time order. Waits for earlier arrivals only keep a program free of deadlocks. O(sends · links).
    """
    earlier: dict[int, list[Action]] = defaultdict(list)
    waits: dict[Action, list[Action]] = defaultdict(list)
    for send in (action for action in actions if action.type == "s"):
        for link in send.links:
            before = earlier[link]
            # Sends over the same link arrive almost in the order of their starts, so the place is found at once.
            at = len(before)
            while at and before[at - 1].turn > send.turn:
                at -= 1
            if at >= at_once[link] and before[at - at_once[link]] not in waits[send]:
                waits[send].append(before[at - at_once[link]])
            before.insert(at, send)
    return waits
