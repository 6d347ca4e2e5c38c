"""Pass: neighbouring chunks that go together are one step with a count, at both ends of their connection.

That makes fewer steps, and where a slot holds several chunks fewer transfers. Chunks go together when their steps wait
for the same and the same wait for them. The steps between two ranks have one count, as threadblocks must: msccl before
its PR 39 goes wrong otherwise (MSCCL XML reference §9).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

from .actions import Action, RankPlan
from .placement import Place
from .targets import MAX_COUNT

#: Two ranks, the smaller first.
_Pair = tuple[int, int]


def merge(plans: Sequence[RankPlan]) -> list[RankPlan]:
    """The plans with merged steps. Hazards (`after`) of the new actions are yet to be found. O(n) for n actions with
    few waits each."""
    waits = _Waits(plans)
    runs: dict[tuple[int, int, int], list[list[_Transfer]]] = {
        connection: list(_runs(transfers, waits)) for connection, transfers in _transfers(plans).items()
    }
    counts: dict[_Pair, int] = defaultdict(int)
    for (src, dst, _), of_it in runs.items():
        pair = (min(src, dst), max(src, dst))
        counts[pair] = gcd(counts[pair], *(len(run) for run in of_it))
    head: dict[Action, Action] = {}  # what each action has become part of
    for (src, dst, _), of_it in runs.items():
        count = _within(counts[min(src, dst), max(src, dst)])
        transfers = [transfer for run in of_it for transfer in run]
        for position in range(0, len(transfers), count):
            group = transfers[position : position + count]
            for end in ([t.send for t in group], [t.receive for t in group]):
                head |= dict.fromkeys(end, _as_one(end, position // count))
    return [replace(plan, actions=_merged(plan.actions, head, waits)) for plan in plans]


@dataclass(frozen=True)
class _Transfer:
    send: Action
    receive: Action

    def goes_with(self, other: _Transfer, waits: _Waits) -> bool:
        """Whether the two are alike but for their places."""
        return self.receive.type == other.receive.type and (
            waits.alike(self.send, other.send) and waits.alike(self.receive, other.receive)
        )


def _transfers(plans: Sequence[RankPlan]) -> dict[tuple[int, int, int], list[_Transfer]]:
    """Every connection's, in order."""
    sends: dict[tuple[int, int, int], list[Action]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[Action]] = defaultdict(list)
    for plan in plans:
        for action in plan.actions:
            if action.connection is not None:
                (sends if action.type == "s" else receives)[action.connection].append(action)
    return {
        connection: [
            _Transfer(send, receive)
            for send, receive in zip(_ordered(sent), _ordered(receives[connection]), strict=True)
        ]
        for connection, sent in sends.items()
    }


def _ordered(actions: Sequence[Action]) -> list[Action]:
    return sorted(actions, key=lambda action: action.position)


class _Waits:
    """What each action waits for, and what waits for it, apart from local copies: those come first anyway."""

    def __init__(self, plans: Sequence[RankPlan]) -> None:
        self.before: dict[Action, frozenset[Action]] = {}
        waiters: dict[Action, set[Action]] = defaultdict(set)
        for plan in plans:
            for action in plan.actions:
                self.before[action] = frozenset(earlier for earlier in action.after if not earlier.is_copy)
                for earlier in action.after:
                    waiters[earlier].add(action)
        self.after = {action: frozenset(waiting) for action, waiting in waiters.items()}

    def alike(self, one: Action, other: Action) -> bool:
        return self.before[one] == self.before[other] and self.waiters(one) == self.waiters(other)

    def waiters(self, action: Action) -> frozenset[Action]:
        return self.after.get(action, frozenset())


def _runs(transfers: Sequence[_Transfer], waits: _Waits) -> Iterator[list[_Transfer]]:
    """The connection's transfers in runs of neighbours that go together. Among those that do, the order is free."""
    group = [transfers[0]]
    for transfer in transfers[1:]:
        if not group[0].goes_with(transfer, waits):
            yield from _neighbours(group)
            group = []
        group.append(transfer)
    yield from _neighbours(group)


def _neighbours(group: list[_Transfer]) -> Iterator[list[_Transfer]]:
    group.sort(key=lambda transfer: transfer.send.src or Place("", 0))
    run = [group[0]]
    for before, transfer in pairwise(group):
        if not (continues(before.send, transfer.send, 1) and continues(before.receive, transfer.receive, 1)):
            yield run
            run = []
        run.append(transfer)
    yield run


def continues(one: Action, other: Action, chunks: int) -> bool:
    """Whether `other` is at the places that come `chunks` after those of `one`."""
    return all(
        after == (None if before is None else Place(before.buffer, before.offset + chunks))
        for before, after in ((one.src, other.src), (one.dst, other.dst))
    )


def _within(count: int) -> int:
    """The largest divisor that a step can move."""
    return next(divisor for divisor in range(min(count, MAX_COUNT), 0, -1) if count % divisor == 0)


def _as_one(actions: Sequence[Action], position: int) -> Action:
    return replace(
        actions[0],
        position=position,
        turn=max(action.turn for action in actions),
        start_us=min(action.start_us for action in actions),
        arrival_us=max(action.arrival_us for action in actions),
        nbytes=sum(action.nbytes for action in actions),
        chunks=len(actions),
        after=[],
    )


def _merged(actions: Sequence[Action], head: Mapping[Action, Action], waits: _Waits) -> list[Action]:
    """The actions of one rank: each group once, where its last one stood; and copies that are waited for together."""
    copies = [action for action in actions if action.is_copy]
    others = [head.get(action) or replace(action, after=[]) for action in actions if not action.is_copy]
    kept = {other: at for at, other in enumerate(others)}  # in the order of the last of each
    groups: list[list[Action]] = []
    users: list[frozenset[Action]] = []
    for copy in copies:
        using = frozenset(head.get(user, user) for user in waits.waiters(copy))
        last = groups[-1] if groups else []
        if using and last and users[-1] == using and len(last) < MAX_COUNT and continues(last[-1], copy, 1):
            last.append(copy)
        else:
            groups.append([copy])
            users.append(using)
    return [*(_as_one(group, 0) for group in groups), *sorted(kept, key=kept.__getitem__)]
