"""Pass: sends keep the schedule's order, also where nothing but the schedule asks for it.

A schedule gives a link to one transfer after another. Threadblocks that send over the same link (to a switch, or to a
NIC) know nothing of each other, and a runtime serves them as they come; so later sends delay earlier ones, and others
beyond the switch that wait for those. Waits between the threadblocks of a rank put that right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..schedule.schedule import Schedule
from .actions import Action

#: How sends wait for their turn: not at all; for the send before them on each link; those over slow links for what
#: arrives before them too; for a send further back on each link, so that it has others at hand while one is held up
#: elsewhere; all for what arrives before them; for what arrives a little later, where they would start much too early;
#: or for a send still further back.
PACES = ("none", "links", "slow", "ahead", "arrivals", "moments", "further")
#: How many sends compete where one fills a link.
COMPETING = {"links": 1, "ahead": 2, "further": 4}
#: As late as this share of how early it would have been a send may start.
LATER = 0.5
#: Starts and arrivals that are less apart are simultaneous.
_MOMENT_US = 1e-6

_Waits = Mapping[Action, Sequence[Action]]


def shared_links(schedule: Schedule) -> frozenset[int]:
    """Links that sends between different pairs of ranks cross. On others a connection's own order is enough, and a
    threadblock that goes ahead while another waits for its data loses nothing."""
    first: dict[int, tuple[int, int]] = {}
    ends = ((send, schedule.ends(send)) for send in schedule.sends)
    return frozenset(link for send, pair in ends for link in send.path if first.setdefault(link, pair) != pair)


def slow_links(schedule: Schedule) -> frozenset[int]:
    """The links that sends cross, but for the fastest ones: who takes another's turn there holds it up longest."""
    links = schedule.topology.link_by_id
    crossed = {link for send in schedule.sends for link in send.path}
    fastest_GBps = max((links[link].bandwidth_GBps for link in crossed), default=0.0)
    return frozenset(link for link in crossed if links[link].bandwidth_GBps < fastest_GBps)


def paced(
    actions: Sequence[Action], pace: str, at_once: Mapping[int, int], slow: frozenset[int] = frozenset()
) -> _Waits:
    """For every send of a rank what else it waits for, where so many sends `at_once` fill a link (id), and some are
    `slow`.

    `actions` are in the order of their turns, and so are waits: that keeps a program free of deadlocks. O(n log n) for
    n sends over few links each.
    """
    waits: dict[Action, list[Action]] = defaultdict(list)
    if pace != "none":
        competing = COMPETING.get(pace, 1)
        _wait_for_links(actions, {link: competing * number for link, number in at_once.items()}, waits)
    if pace == "slow":
        _wait_for_arrivals(actions, 0.0, waits, slow)
    elif pace in ("arrivals", "moments"):
        _wait_for_arrivals(actions, LATER if pace == "moments" else 0.0, waits)
    return waits


def _wait_for_links(actions: Sequence[Action], at_once: Mapping[int, int], waits: dict[Action, list[Action]]) -> None:
    """No more than `at_once` sends compete for a link (id) that is shared: each waits for the one so many places before
    it, of those that start and arrive earlier."""
    earlier: dict[int, list[Action]] = defaultdict(list)
    for send in (action for action in actions if action.type == "s"):
        for link in send.links:
            if link not in at_once:
                continue
            before = earlier[link]
            # Sends arrive almost in the order of their starts, so the place is found at once.
            at = len(before)
            while at and before[at - 1].start_us > send.start_us:
                at -= 1
            if at >= at_once[link] and before[at - at_once[link]] not in waits[send]:
                waits[send].append(before[at - at_once[link]])
            before.insert(at, send)


def _wait_for_arrivals(
    actions: Sequence[Action], later: float, waits: dict[Action, list[Action]], over: frozenset[int] | None = None
) -> None:
    """Each send (`over` some of these links, if given) waits for the last arrival before it: arrivals are the clock
    that ranks have in common. A send that its own rank would start before its time takes the way into a peer from
    another rank, whose time it is.

    One that could still start too early waits for the next arrival, if that makes it late by no more than the share
    `later` of what it would be early.
    """
    arrivals = sorted((a for a in actions if a.type in ("r", "rrc", "re")), key=lambda action: action.arrival_us)
    times = [arrival.arrival_us for arrival in arrivals]
    free: dict[int, float] = defaultdict(float)  # link → when the rank's last send over it has arrived
    for send in sorted((action for action in actions if action.type == "s"), key=lambda action: action.start_us):
        if over is not None and over.isdisjoint(send.links):
            continue
        at = bisect_right(times, send.start_us + _MOMENT_US)
        early_us = send.start_us - max(times[at - 1] if at else 0.0, *(free[link] for link in send.links))
        if at < len(times) and times[at] - send.start_us <= later * early_us and arrivals[at].turn < send.turn:
            at += 1
        if at and arrivals[at - 1].turn < send.turn:
            waits[send].append(arrivals[at - 1])
        free.update((link, send.arrival_us) for link in send.links)
