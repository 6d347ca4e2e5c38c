"""Pass: what a rank receives and passes on becomes one step of one threadblock: rcs, or with a reduction rrs or rrcs.

A fused step reads and writes memory less often than the two that it replaces, and needs neither a dependency nor a
second threadblock. But it waits for two connections at once: for data of one and for a place in the other. Hence the
rules here, and that whoever asks for it has to see whether the program is still as fast, and free of deadlocks with
the credits that its protocol has (a ring of fused steps needs two).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from .actions import Action
from .channels import ChannelPlan, Stream

#: What is fused of a receive and a send, where the sum is kept and where it is only passed on.
_FUSED = {"r": ("rcs", "rcs"), "rrc": ("rrcs", "rrs")}

_Waits = Mapping[Action, Sequence[Action]]
_Pairs = list[tuple[Action, Action]]  # a receive, and the send that passes on what it brings


@dataclass(frozen=True)
class FusedRank:
    """One rank's actions in an order that its waits agree with, what sends wait for besides hazards, and the streams
    that share a threadblock: of what is sent to what is received."""

    actions: Sequence[Action]
    waits: _Waits
    joined: Mapping[Stream, Stream]


def fuse(
    actions: Sequence[Action], channels: ChannelPlan, waits: _Waits, order_hazards: Callable[[Sequence[Action]], None]
) -> FusedRank:
    """The rank's actions with all that is passed on fused, wherever two streams of one channel, in and out, are mostly
    the same chunks in the same order: elsewhere one would hold up the other.

    `order_hazards` fills `after` of new actions. O(n log n) for n actions, and all pairs of streams of a channel.
    """
    streams: dict[Stream, list[Action]] = defaultdict(list)
    for action in actions:
        if action.connection is not None:
            streams[channels.stream(action.connection, action.position)].append(action)
    joined: dict[Stream, Stream] = {}
    pairs: _Pairs = []
    for into, out, common in _candidates(streams, channels, _sources(actions)):
        if out not in joined and into not in joined.values():
            joined[out] = into
            pairs += common
    if not pairs:
        return FusedRank(actions, waits, {})
    kept = _kept(actions, dict(pairs))
    fused = {receive: _fused(receive, send, kept[receive]) for receive, send in pairs}
    became = fused | {send: fused[receive] for receive, send in pairs}
    ordered = _in_order(actions, became, waits, list(streams.values()))
    if ordered is None:  # it would have to wait for itself
        return FusedRank(actions, waits, {})
    fresh = {action: replace(action, after=[]) for action in ordered}
    order_hazards(list(fresh.values()))
    new = {old: fresh[became.get(old, old)] for old in actions}
    paced: dict[Action, list[Action]] = defaultdict(list)
    for old, before in waits.items():
        paced[new[old]] += [new[each] for each in before if new[each] is not new[old]]
    return FusedRank(list(fresh.values()), paced, joined)


def _sources(actions: Sequence[Action]) -> dict[Action, Action]:
    """For each send the receive that brings what it sends."""
    found = {}
    for send in actions:
        if send.type == "s":
            for earlier in send.after:
                if earlier.type in _FUSED and earlier.dst == send.src:
                    found[send] = earlier
    return found


def _candidates(
    streams: Mapping[Stream, Sequence[Action]], channels: ChannelPlan, source: Mapping[Action, Action]
) -> list[tuple[Stream, Stream, _Pairs]]:
    """Streams in and out of a rank that are mostly one, those with most in common first."""
    met = set()
    for send, receive in source.items():
        assert send.connection is not None and receive.connection is not None
        into = channels.stream(receive.connection, receive.position)
        out = channels.stream(send.connection, send.position)
        if into[2] == out[2]:
            met.add((into, out))
    found = [(into, out, _common(streams[into], streams[out], source)) for into, out in sorted(met)]
    found = [each for each in found if 2 * len(each[2]) >= max(len(streams[each[0]]), len(streams[each[1]]), 1)
             and len({action.chunks for end in each[:2] for action in streams[end]}) == 1]  # fmt: skip
    return sorted(found, key=lambda each: -len(each[2]))


def _common(receives: Sequence[Action], sends: Sequence[Action], source: Mapping[Action, Action]) -> _Pairs:
    """What comes and goes on in the same order. A send of something else must be gone before the next receive."""
    place = {receive: at for at, receive in enumerate(receives)}
    pairs: _Pairs = []
    held_up_us = 0.0
    last = -1
    for send in sends:
        at = place.get(source.get(send, send), -1)
        if at > last and held_up_us <= receives[at].arrival_us:
            pairs.append((receives[at], send))
            last = at
        else:
            held_up_us = max(held_up_us, send.start_us)
    return pairs


def _kept(actions: Sequence[Action], passed_on: Mapping[Action, Action]) -> dict[Action, bool]:
    """Whether anyone but the send needs what a receive writes: a reader, or the user."""
    read, overwritten = set(), set()
    for action in actions:
        for earlier in action.after:
            if earlier in passed_on and action is not passed_on[earlier]:
                if action.src is not None:
                    read.add(earlier)
                elif action.dst == earlier.dst:
                    overwritten.add(earlier)
    return {
        receive: receive in read or not (receive.dst is None or receive.dst.buffer == "s" or receive in overwritten)
        for receive in passed_on
    }


def _fused(receive: Action, send: Action, kept: bool) -> Action:
    type = _FUSED[receive.type][not kept]
    onward = None if send.connection is None else (send.connection, send.position)
    target = None if type == "rrs" else receive.dst
    return replace(receive, type=type, dst=target, start_us=send.start_us, onward=onward)


def _in_order(
    actions: Sequence[Action], became: Mapping[Action, Action], waits: _Waits, streams: Sequence[Sequence[Action]]
) -> list[Action] | None:
    """All actions, fused ones once: after what they wait for and in the order of their streams, else in that of time
    (sends first). None where that is a circle."""
    moment: dict[Action, tuple[float, bool, int]] = {}
    follow: dict[Action, list[Action]] = defaultdict(list)
    missing: Counter[Action] = Counter()

    def before(first: Action, then: Action) -> None:
        if first is not then:
            follow[first].append(then)
            missing[then] += 1

    for turn, old in enumerate(actions):
        action = became.get(old, old)
        sends = action.type == "s" or action.onward is not None
        time = action.start_us if sends else action.arrival_us
        moment[action] = (time if action.turn >= 0 else -1.0, not sends, turn)
        for earlier in (*old.after, *waits.get(old, ())):
            before(became.get(earlier, earlier), action)
    for stream in streams:
        for earlier, later in pairwise(stream):
            before(became.get(earlier, earlier), became.get(later, later))
    queue = [(at, action) for action, at in moment.items() if not missing[action]]
    heapify(queue)
    ordered = []
    while queue:
        _, action = heappop(queue)
        ordered.append(action)
        for later in follow[action]:
            missing[later] -= 1
            if not missing[later]:
                heappush(queue, (moment[later], later))
    return ordered if len(ordered) == len(moment) else None
