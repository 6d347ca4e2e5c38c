"""Pass: where sends and receives share a threadblock, each stands where its moment comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .actions import Action
from .channels import ChannelPlan, Stream

_Moment = tuple[float, int, int]


def in_order_of_moments(
    actions: Sequence[Action], channels: ChannelPlan, waits: Mapping[Action, Sequence[Action]]
) -> list[Action]:
    """The rank's actions with receives at their arrival and sends at their start, or when what they wait for is there
    if that is later: also the transfer before them, as with one credit.

    In the order of turns a send would stand where its data arrives, behind whatever arrives while it is on its way.
    Moments keep a program free of deadlocks, too: every wait is for an earlier one, and a send's is not after that of
    its arrival. A send of several chunks may need its receive to go on, so its moment is the same. `actions` are in
    the order of their turns. O(n log n).
    """
    moments: dict[Action, _Moment] = {}
    sent: dict[Stream, float] = {}  # when the stream's last transfer arrives
    for action in actions:
        if action.type != "s":
            moments[action] = (action.arrival_us if action.turn >= 0 else -1.0, action.turn, 1)
            continue
        assert action.connection is not None
        stream = channels.stream(action.connection, action.position)
        earlier = [moments[each][0] for each in (*action.after, *waits.get(action, ()))]
        due_us = max(action.start_us, sent.get(stream, 0.0), *earlier) if action.chunks == 1 else action.arrival_us
        moments[action] = (min(due_us, action.arrival_us), action.turn, 0)
        sent[stream] = action.arrival_us
    return sorted(actions, key=moments.__getitem__)
